//! A multi-layer perceptron on numbers.

use crate::builder::Builder;
use crate::graph::Graph;
use tensor::activation::Activation;

/// Its sides.
#[derive(Clone, Debug, PartialEq)]
pub struct Mlp {
    /// Numbers in.
    pub input: usize,
    /// Widths of the hidden layers.
    pub hidden: Vec<usize>,
    /// Classes out.
    pub classes: usize,
    /// Between layers.
    pub activation: Activation,
}

impl Mlp {
    /// The model.
    pub fn graph(&self) -> Graph {
        let mut build = Builder::numbers(self.input);
        let (mut x, mut width) = (build.features(), self.input);
        for (layer, &next) in self.hidden.iter().enumerate() {
            build.cut();
            let map =
                build.map(&format!("layers.{layer}"), width, next, (2.0 / width as f32).sqrt());
            x = build.linear(x, &[map], Some(self.activation));
            width = next;
        }
        let head = build.map("head", width, self.classes, (1.0 / width as f32).sqrt());
        let logits = build.linear(x, &[head], None);
        build.finish(logits)
    }
}
