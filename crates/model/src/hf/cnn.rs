//! The configuration of our own small convolutional network. `transformers` does not know it: the
//! layout is the same, the model is ours.

use std::path::Path;

use serde_json::{Map, Value, json};
use tensor::patches::ImageShape;

use super::key::{Check, Keys};
use crate::{Cnn, Error};

/// `model_type`.
pub(super) const KIND: &str = "muffle-cnn";

/// The most stages, rows and columns.
const MOST_STAGES: usize = 64;
const LARGEST_IMAGE: usize = 4096;
const MOST_CHANNELS: usize = 1 << 16;

pub(super) fn parse(keys: Keys<'_>) -> Result<Cnn, Error> {
    let stages = keys
        .required("stages")?
        .as_array()
        .ok_or_else(|| keys.wrong("stages", "a list of channels"))?;
    let channels = |value: &Value| {
        value
            .as_u64()
            .and_then(|count| usize::try_from(count).ok())
            .ok_or_else(|| keys.wrong("stages", "a list of channels"))
    };
    let cnn = Cnn {
        image: ImageShape {
            height: keys.count("image_height")?,
            width: keys.count("image_width")?,
            channels: keys.count("image_channels")?,
        },
        stages: stages.iter().map(channels).collect::<Result<_, _>>()?,
        groups: keys.count("groups")?,
        classes: keys.count("classes")?,
    };
    check(&cnn, keys.path)?;
    Ok(cnn)
}

pub(super) fn check(cnn: &Cnn, path: &Path) -> Result<(), Error> {
    let check = Check { path };
    check.between("image_height", cnn.image.height, LARGEST_IMAGE)?;
    check.between("image_width", cnn.image.width, LARGEST_IMAGE)?;
    check.between("image_channels", cnn.image.channels, MOST_CHANNELS)?;
    check.between("the number of stages", cnn.stages.len(), MOST_STAGES)?;
    check.between("groups", cnn.groups, MOST_CHANNELS)?;
    check.between("classes", cnn.classes, MOST_CHANNELS)?;
    let (mut channels, mut terms) = (cnn.image.channels, Vec::new());
    for &next in &cnn.stages {
        check.between("stages", next, MOST_CHANNELS)?;
        check.divides("groups", cnn.groups, next, "every stage's channels")?;
        terms.push([9, channels, next]);
        channels = next;
    }
    terms.push([1, channels, cnn.classes]);
    check.numbers(&terms)?;
    // Every stage but the last halves the image.
    let least = 1usize << (cnn.stages.len() - 1).min(30);
    check.holds(
        cnn.image.height.min(cnn.image.width) >= least,
        "the smaller side of the image",
        format!("at least {least}"),
        cnn.image.height,
    )
}

pub(super) fn write(cnn: &Cnn, map: &mut Map<String, Value>) {
    let ours = json!({
        "architectures": ["MuffleCnn"],
        "model_type": KIND,
        "image_height": cnn.image.height,
        "image_width": cnn.image.width,
        "image_channels": cnn.image.channels,
        "stages": cnn.stages,
        "groups": cnn.groups,
        "classes": cnn.classes,
    });
    if let Value::Object(ours) = ours {
        map.extend(ours);
    }
}
