//! Configuration of the small convolutional network, in the Hugging Face layout.
//!
//! `transformers` does not have this model.

use std::path::Path;

use serde_json::{Map, Value, json};
use tensor::patches::ImageShape;

use super::activation;
use super::keys::{Check, Keys};
use crate::{Cnn, Error};

/// The `model_type`.
pub(super) const MODEL_TYPE: &str = "muffle-cnn";

/// Largest number of stages.
const MAX_STAGES: usize = 64;
/// Largest height and width of an image.
const MAX_IMAGE_SIZE: usize = 4096;
/// Largest number of channels, groups and classes.
const MAX_CHANNELS: usize = 1 << 16;

pub(super) fn parse(keys: Keys<'_>) -> Result<Cnn, Error> {
    let stages = keys
        .required("stages")?
        .as_array()
        .ok_or_else(|| keys.invalid("stages", "a list of numbers of channels"))?;
    let channels = |value: &Value| {
        value
            .as_u64()
            .and_then(|count| usize::try_from(count).ok())
            .ok_or_else(|| keys.invalid("stages", "a list of numbers of channels"))
    };
    let cnn = Cnn {
        image: ImageShape {
            height: keys.integer("image_height")?,
            width: keys.integer("image_width")?,
            channels: keys.integer("image_channels")?,
        },
        stages: stages.iter().map(channels).collect::<Result<_, _>>()?,
        activation: keys.activation("activation")?,
        groups: keys.integer("groups")?,
        global_pooling: keys
            .boolean("global_pooling")?
            .ok_or_else(|| keys.missing("global_pooling"))?,
        classes: keys.integer("classes")?,
    };
    check(&cnn, keys.path)?;
    Ok(cnn)
}

pub(super) fn check(cnn: &Cnn, path: &Path) -> Result<(), Error> {
    let check = Check { path };
    check.in_range("image_height", cnn.image.height, MAX_IMAGE_SIZE)?;
    check.in_range("image_width", cnn.image.width, MAX_IMAGE_SIZE)?;
    check.in_range("image_channels", cnn.image.channels, MAX_CHANNELS)?;
    check.require(
        cnn.stages.len() <= MAX_STAGES,
        "number of stages",
        format!("at most {MAX_STAGES}"),
        cnn.stages.len(),
    )?;
    check.require(
        cnn.groups <= MAX_CHANNELS,
        "groups",
        format!("at most {MAX_CHANNELS}"),
        cnn.groups,
    )?;
    check.in_range("classes", cnn.classes, MAX_CHANNELS)?;
    let (mut channels, mut terms) = (cnn.image.channels, Vec::new());
    for &next in &cnn.stages {
        check.in_range("stages", next, MAX_CHANNELS)?;
        if cnn.groups > 0 {
            check.divides("groups", cnn.groups, next, "every stage's channels")?;
        }
        terms.push([9, channels, next]);
        channels = next;
    }
    // Every stage except the last halves the image.
    let min_size = 1usize << cnn.stages.len().saturating_sub(1).min(30);
    check.require(
        cnn.image.height.min(cnn.image.width) >= min_size,
        "smaller of image_height and image_width",
        format!("at least {min_size}"),
        cnn.image.height.min(cnn.image.width),
    )?;
    // No overflow: at most 4096 · 4096 pixels of 65536 channels.
    terms.push([1, cnn.head_inputs(), cnn.classes]);
    check.parameter_count(&terms)
}

pub(super) fn write(cnn: &Cnn, map: &mut Map<String, Value>) {
    let ours = json!({
        "architectures": ["MuffleCnn"],
        "model_type": MODEL_TYPE,
        "image_height": cnn.image.height,
        "image_width": cnn.image.width,
        "image_channels": cnn.image.channels,
        "stages": cnn.stages,
        "groups": cnn.groups,
        "global_pooling": cnn.global_pooling,
        "classes": cnn.classes,
    });
    if let Value::Object(ours) = ours {
        map.extend(ours);
    }
    activation::write(map, "activation", cnn.activation);
}
