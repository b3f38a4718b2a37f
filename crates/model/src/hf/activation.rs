//! Names of activation functions.

use serde_json::{Map, Value};
use tensor::activation::Activation;

/// Returns the activation function with this name.
pub(super) fn from_name(name: &str) -> Option<Activation> {
    match name {
        "relu" => Some(Activation::Relu),
        "gelu_new" | "gelu_pytorch_tanh" => Some(Activation::GeluTanh),
        "gelu" => Some(Activation::GeluErf),
        "silu" | "swish" => Some(Activation::Silu),
        "tanh" => Some(Activation::Tanh),
        _ => None,
    }
}

/// The supported names, for errors.
pub(super) const NAMES: &str =
    "one of relu, gelu, gelu_new, gelu_pytorch_tanh, silu, swish and tanh";

/// Writes the name of an activation function. A synonym that is already there is retained.
pub(super) fn write(map: &mut Map<String, Value>, key: &str, activation: Activation) {
    if map.get(key).and_then(Value::as_str).and_then(from_name) != Some(activation) {
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
    fn names_are_parsed_back() {
        for activation in [
            Activation::Relu,
            Activation::GeluTanh,
            Activation::GeluErf,
            Activation::Silu,
            Activation::Tanh,
        ] {
            assert_eq!(from_name(name(activation)), Some(activation));
        }
        assert_eq!(from_name("gelu_fast"), None);
    }
}
