//! A small convolutional network with group norm: no example sees another, as with batch norm it
//! would.

use crate::builder::{Builder, Linear};
use crate::graph::Graph;
use tensor::activation::Activation;
use tensor::patches::{ImageShape, Window};
use tensor::pooling::Pool;

/// Shape of a convolutional network.
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
    /// The images.
    pub image: ImageShape,
    /// Channels of each stage; a stage is a 3×3 convolution, group norm and, except after the last,
    /// 2×2 max pooling.
    pub stages: Vec<usize>,
    /// Groups of the group norms.
    pub groups: usize,
    /// Classes out.
    pub classes: usize,
}

impl Cnn {
    /// The model.
    pub fn graph(&self) -> Graph {
        let mut build = Builder::features(self.image.len());
        let mut x = build.image(self.image);
        let around = Window { kernel: [3, 3], stride: [1, 1], padding: [1, 1] };
        let halves = Window { kernel: [2, 2], stride: [2, 2], padding: [0, 0] };
        for (stage, &channels) in self.stages.iter().enumerate() {
            build.segment();
            x = build.conv(
                &format!("stages.{stage}.conv"),
                x,
                channels,
                around,
                Some(Activation::Relu),
            );
            x = build.group_norm(&format!("stages.{stage}.norm"), x, self.groups, 1e-5);
            if stage + 1 < self.stages.len() {
                x = build.pool(x, Pool::Max, halves);
            }
        }
        let width = self.stages.last().copied().unwrap_or(self.image.channels);
        let x = build.mean(x);
        let logits = build.linear(x, Linear::new("head", width, self.classes));
        build.finish(logits)
    }
}
