//! Named model sizes.

use crate::hf::{Architecture, Gpt2Config};
use tensor::activation::Activation;

/// A named model size.
///
/// ```
/// assert_eq!(model::Preset::named("tiny"), Some(model::Preset::Tiny));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// GPT-2 with 2 layers, width 64, vocabulary 512, for experiments.
    Tiny,
    /// GPT-2 with 4 layers, width 256, vocabulary 8192.
    Gpt2S,
    /// GPT-2 with 12 layers, width 768, vocabulary 50257.
    Gpt2,
}

impl Preset {
    /// All presets.
    pub const ALL: [Self; 3] = [Self::Tiny, Self::Gpt2S, Self::Gpt2];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::Gpt2S => "gpt2-s",
            Self::Gpt2 => "gpt2",
        }
    }

    /// Returns the preset with this name, if there is one.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.name() == name)
    }

    /// Returns the architecture. The head is not tied, as in the experiments of DP-Muon.
    pub fn architecture(self) -> Architecture {
        let (layers, width, heads, vocab, positions) = match self {
            Self::Tiny => (2, 64, 2, 512, 128),
            Self::Gpt2S => (4, 256, 4, 8192, 1024),
            Self::Gpt2 => (12, 768, 12, 50257, 1024),
        };
        Architecture::Gpt2(Gpt2Config {
            vocab,
            positions,
            width,
            layers,
            heads,
            inner: 4 * width,
            activation: Activation::GeluTanh,
            epsilon: 1e-5,
            tied: false,
        })
    }
}
