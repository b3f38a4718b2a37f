//! Features of images that a model takes instead of pixels.
//!
//! They are configured for training (`data.features`) and stored in the `config.json` of the model,
//! so that evaluation applies the same transform.

use crate::Error;
use crate::config::{self, Features};
use data::Scattering;
use model::InputShape;
use model::hf;
use model::patches::ImageShape;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The key in the `config.json` of a model.
const KEY: &str = "image_features";

/// The value of the key: the transform, and the shape of the images.
///
/// A transform whose values change gets another name, so that a trained model is not used with
/// features on which it was not trained.
#[derive(Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "kebab-case", deny_unknown_fields)]
enum StoredFeatures {
    WhitenedScattering { height: usize, width: usize, channels: usize },
}

/// Returns the features that a configuration chooses for images of this shape.
///
/// # Errors
/// If the data are not images, or images that the transform does not take.
pub(super) fn configured(
    config: &config::Data,
    image: Option<ImageShape>,
) -> Result<Option<Scattering>, Error> {
    match (config.features, image) {
        (Features::None, _) => Ok(None),
        (Features::Scattering, Some(ImageShape { height, width, channels })) => {
            let scattering = Scattering::new(height, width, channels);
            scattering.map(Some).map_err(|error| Error::config("data.features", error.to_string()))
        }
        (Features::Scattering, None) => Err(Error::config(
            "data.features",
            "expected \"none\", because data.train has no images; got \"scattering\"",
        )),
    }
}

/// Returns the features that a model takes; `None` for pixels or texts.
///
/// # Errors
/// If its `config.json` has invalid ones.
pub(super) fn stored(model: &hf::Config) -> Result<Option<Scattering>, Error> {
    let Some(value) = model.other_keys.get(KEY) else { return Ok(None) };
    let invalid = |error: String| {
        Error::config("model.source", format!("config.json: invalid {KEY:?}: {error}"))
    };
    let StoredFeatures::WhitenedScattering { height, width, channels } =
        StoredFeatures::deserialize(value).map_err(|error| {
            invalid(format!("{error}; a model of other features cannot be used: train it again"))
        })?;
    Scattering::new(height, width, channels).map(Some).map_err(|error| invalid(error.to_string()))
}

/// Stores features with a model.
///
/// # Errors
/// If the model takes other ones.
pub(super) fn store(model: &mut hf::Config, features: &Scattering) -> Result<(), Error> {
    if let Some(stored) = stored(model)?
        && stored.image_shape() != features.image_shape()
    {
        return Err(Error::config(
            "data.train",
            format!(
                "expected images of {}, on which the model was trained; got {}",
                product(stored.image_shape()),
                product(features.image_shape())
            ),
        ));
    }
    let [height, width, channels] = features.image_shape();
    let value = StoredFeatures::WhitenedScattering { height, width, channels };
    model.other_keys.insert(KEY.into(), json!(value));
    Ok(())
}

/// Checks that a model can read features.
///
/// # Errors
/// If it reads texts, or its input has another size.
pub(super) fn check_input(features: &Scattering, input: InputShape) -> Result<(), Error> {
    let shape = features.shape();
    match input {
        InputShape::Tokens { .. } => Err(text_model()),
        InputShape::Features(elements) if elements != shape.iter().product::<usize>() => {
            Err(Error::config(
                "model.source",
                format!(
                    "expected a model of {} features, because data.features is \"scattering\", \
                     such as \"linear\" or \"scatter-cnn\"; got a model of {elements} elements",
                    product(shape)
                ),
            ))
        }
        InputShape::Features(_) => Ok(()),
    }
}

/// The error for features that are configured with a model of texts.
pub(super) fn text_model() -> Error {
    Error::config(
        "data.features",
        "expected \"none\", because model.source is a model of texts; got \"scattering\"",
    )
}

/// The error for a model of features that is to be trained on pixels.
pub(super) fn missing() -> Error {
    Error::config("data.features", "expected \"scattering\", as the model takes; got \"none\"")
}

fn product(shape: [usize; 3]) -> String {
    shape.map(|size| size.to_string()).join(" × ")
}
