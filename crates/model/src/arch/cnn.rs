//! A small convolutional network with group normalization.
//!
//! Batch normalization would mix examples.

use crate::builder::{Builder, Linear};
use crate::graph::Graph;
use tensor::activation::Activation;
use tensor::patches::{ImageShape, Window};
use tensor::pooling::Pool;

/// Hyperparameters of a convolutional network.
///
/// ```
/// use model::Cnn;
/// use model::patches::ImageShape;
///
/// let image = ImageShape { height: 28, width: 28, channels: 1 };
/// let cnn = Cnn { image, stages: vec![8, 16], groups: 4, classes: 10 };
/// assert_eq!(cnn.graph().params()[0].name, "stages.0.conv.weight");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Cnn {
    /// Shape of the images.
    pub image: ImageShape,
    /// Number of channels of each stage.
    ///
    /// A stage is a 3×3 convolution, group normalization and, except in the last, 2×2 max pooling.
    pub stages: Vec<usize>,
    /// Number of groups of each group normalization.
    pub groups: usize,
    /// Number of classes.
    pub classes: usize,
}

impl Cnn {
    /// Builds the graph.
    pub fn graph(&self) -> Graph {
        let mut build = Builder::features(self.image.len());
        let mut x = build.image(self.image);
        let same = Window { kernel: [3, 3], stride: [1, 1], padding: [1, 1] };
        let halve = Window { kernel: [2, 2], stride: [2, 2], padding: [0, 0] };
        for (stage, &channels) in self.stages.iter().enumerate() {
            build.segment();
            x = build.conv(
                &format!("stages.{stage}.conv"),
                x,
                channels,
                same,
                Some(Activation::Relu),
            );
            x = build.group_norm(&format!("stages.{stage}.norm"), x, self.groups, 1e-5);
            if stage + 1 < self.stages.len() {
                x = build.pool(x, Pool::Max, halve);
            }
        }
        let width = self.stages.last().copied().unwrap_or(self.image.channels);
        let x = build.mean(x);
        let logits = build.linear(x, Linear::new("head", width, self.classes));
        build.finish(logits)
    }
}
