//! A small convolutional network; without stages, a linear classifier of images.
//!
//! Normalization is by groups of channels: batch normalization would mix examples.

use crate::builder::{Builder, Linear};
use crate::graph::Graph;
use tensor::activation::Activation;
use tensor::patches::{ImageShape, Window};
use tensor::pooling::Pool;

/// Hyperparameters of a convolutional network.
///
/// ```
/// use model::Cnn;
/// use model::activation::Activation;
/// use model::patches::ImageShape;
///
/// let image = ImageShape { height: 28, width: 28, channels: 1 };
/// let cnn = Cnn {
///     image,
///     stages: vec![8, 16],
///     activation: Activation::Relu,
///     groups: 4,
///     global_pooling: true,
///     classes: 10,
/// };
/// assert_eq!(cnn.graph().params()[0].name, "stages.0.conv.weight");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Cnn {
    /// Shape of the images.
    pub image: ImageShape,
    /// Number of channels of each stage. Without stages, the model is linear.
    ///
    /// A stage is a 3×3 convolution, the activation, group normalization and, except in the last,
    /// 2×2 max pooling.
    pub stages: Vec<usize>,
    /// Activation function of each convolution.
    pub activation: Activation,
    /// Number of groups of each group normalization; 0 for none.
    pub groups: usize,
    /// Whether the last stage is averaged over its pixels. If not, all its elements are classified.
    pub global_pooling: bool,
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
                Some(self.activation),
            );
            if self.groups > 0 {
                x = build.group_norm(&format!("stages.{stage}.norm"), x, self.groups, 1e-5);
            }
            if stage + 1 < self.stages.len() {
                x = build.pool(x, Pool::Max, halve);
            }
        }
        let x = if self.global_pooling { build.mean(x) } else { build.flatten(x) };
        let mut head = Linear::new("head", self.head_inputs(), self.classes);
        if self.stages.is_empty() {
            // A linear model needs no asymmetry to start from, and noise in the weights of
            // directions that are not learned would stay there.
            head = head.init_std(0.0);
        }
        let logits = build.linear(x, head);
        build.finish(logits)
    }

    /// Number of inputs of the classifier.
    pub(crate) fn head_inputs(&self) -> usize {
        let channels = self.stages.last().copied().unwrap_or(self.image.channels);
        if self.global_pooling {
            return channels;
        }
        // Every stage except the last halves the image.
        let halvings = self.stages.len().saturating_sub(1);
        (self.image.height >> halvings) * (self.image.width >> halvings) * channels
    }
}
