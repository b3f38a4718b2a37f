//! The names of activations.

use serde_json::{Map, Value};
use tensor::activation::Activation;

/// The activation of this name.
pub(super) fn named(name: &str) -> Option<Activation> {
    match name {
        "relu" => Some(Activation::Relu),
        "gelu_new" | "gelu_pytorch_tanh" => Some(Activation::GeluTanh),
        "gelu" => Some(Activation::GeluErf),
        "silu" | "swish" => Some(Activation::Silu),
        "tanh" => Some(Activation::Tanh),
        _ => None,
    }
}

/// All names, for an error.
pub(super) const NAMES: &str =
    "one of relu, gelu, gelu_new, gelu_pytorch_tanh, silu, swish and tanh";

/// Writes an activation under its usual name, unless another of its names is there already.
pub(super) fn write(map: &mut Map<String, Value>, key: &str, activation: Activation) {
    if map.get(key).and_then(Value::as_str).and_then(named) != Some(activation) {
        map.insert(key.into(), name(activation).into());
    }
}

fn name(activation: Activation) -> &'static str {
    match activation {
        Activation::Relu => "relu",
        Activation::GeluTanh => "gelu_new",
        Activation::GeluErf => "gelu",
        Activation::Silu => "silu",
        Activation::Tanh => "tanh",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for activation in [
            Activation::Relu,
            Activation::GeluTanh,
            Activation::GeluErf,
            Activation::Silu,
            Activation::Tanh,
        ] {
            assert_eq!(named(name(activation)), Some(activation));
        }
        assert_eq!(named("gelu_fast"), None);
    }
}
