//! A multi-layer perceptron on feature vectors.

use crate::builder::{Builder, Linear};
use crate::graph::Graph;
use tensor::activation::Activation;

/// Hyperparameters of a multi-layer perceptron.
///
/// ```
/// use model::Mlp;
/// use model::activation::Activation;
///
/// let mlp = Mlp { input: 4, hidden: vec![8, 8], classes: 2, activation: Activation::Relu };
/// // Three weights and their biases.
/// assert_eq!(mlp.graph().params().len(), 6);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Mlp {
    /// Number of features.
    pub input: usize,
    /// Widths of the hidden layers.
    pub hidden: Vec<usize>,
    /// Number of classes.
    pub classes: usize,
    /// Activation function of the hidden layers.
    pub activation: Activation,
}

impl Mlp {
    /// Builds the graph.
    pub fn graph(&self) -> Graph {
        let mut build = Builder::features(self.input);
        let (mut x, mut width) = (build.input(), self.input);
        for (layer, &next) in self.hidden.iter().enumerate() {
            build.segment();
            let linear = Linear::new(format!("layers.{layer}"), width, next)
                .init_std((2.0 / width as f32).sqrt());
            x = build.linear(x, linear.activation(self.activation));
            width = next;
        }
        let logits = build.linear(x, Linear::new("head", width, self.classes));
        build.finish(logits)
    }
}
