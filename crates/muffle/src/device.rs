//! The device that computes: the one place above the engines that names them.

use model::Device;

/// The device on which models are trained and evaluated.
pub fn device() -> &'static dyn Device {
    &cpu::Cpu
}
