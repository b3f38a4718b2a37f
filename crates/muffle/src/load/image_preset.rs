//! New classifiers of images.

use crate::Error;
use crate::load::model::DataProperties;
use crate::load::task;
use data::{Scattering, Task};
use model::activation::Activation;
use model::hf::{self, Architecture};
use model::patches::ImageShape;
use model::{Checkpoint, Cnn};

/// A new classifier of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ImagePreset {
    /// Three convolutions with group normalization.
    Cnn,
    /// A linear classifier.
    Linear,
    /// Two convolutions on features.
    ///
    /// The network that Tramèr and Boneh (2021) use on scattering features of CIFAR-10.
    ScatterCnn,
}

impl ImagePreset {
    /// All presets.
    pub(super) const ALL: [Self; 3] = [Self::Cnn, Self::Linear, Self::ScatterCnn];

    /// The name in configurations.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cnn => "cnn",
            Self::Linear => "linear",
            Self::ScatterCnn => "scatter-cnn",
        }
    }

    fn architecture(self, image: ImageShape, classes: usize) -> Cnn {
        let (stages, activation, groups) = match self {
            Self::Cnn => (vec![32, 64, 64], Activation::Relu, 8),
            Self::Linear => (vec![], Activation::Relu, 0),
            Self::ScatterCnn => (vec![64, 64], Activation::Tanh, 0),
        };
        Cnn { image, stages, activation, groups, global_pooling: self == Self::Cnn, classes }
    }
}

/// Creates a new classifier for the images of the data, or for their features.
pub(super) fn new_image_model(
    preset: ImagePreset,
    data: DataProperties<'_>,
    features: Option<&Scattering>,
    task: Task,
    seed: u64,
) -> Result<Checkpoint, Error> {
    let Some(image) = data.image else {
        return Err(Error::config(
            "model.source",
            format!(
                "expected a model of texts, because data.train has no images; got {:?}",
                preset.name()
            ),
        ));
    };
    if preset == ImagePreset::ScatterCnn && features.is_none() {
        return Err(Error::config(
            "data.features",
            "expected \"scattering\", because model.source is \"scatter-cnn\"; got \"none\"",
        ));
    }
    let image = features.map_or(image, |features| {
        let [height, width, channels] = features.shape();
        ImageShape { height, width, channels }
    });
    let cnn = preset.architecture(image, task.outputs(data.labels.len()));
    let mut config = hf::Config::new(Architecture::Cnn(cnn));
    config.loss = task::loss(task);
    Ok(Checkpoint::new(config, None, seed)?)
}
