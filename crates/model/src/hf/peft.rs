//! Low-rank adapters in the layout of the Python package PEFT, for use with the original model.
//!
//! A run with adapters begins at W = W₀ + s (A Bᵀ − A₀ B₀ᵀ), where W₀ is the original weight: new
//! adapters are not zero, and W₀ is shifted so that the model is unchanged. PEFT adds the product
//! of two factors to W₀ itself. So the saved factors are [A, −A₀] and [B, B₀], of twice the rank.

use std::collections::BTreeSet;
use std::path::Path;

use protocol::Params;
use serde_json::json;
use tensor::Array;

use super::save::{write_shard, write_text};
use super::staging::Staging;
use super::{Architecture, Config, Dtype};
use crate::checkpoint::is_adapter;
use crate::{Error, Network, Param};

/// File of the adapter's configuration.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";

/// File of the adapter's weights.
pub const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";

/// An adapter to save.
#[derive(Clone, Copy, Debug)]
pub struct Adapter<'a> {
    /// The model with its frozen weights.
    pub network: &'a dyn Network,
    /// The trained parameters.
    pub trained: &'a Params,
    /// The parameters before training.
    pub initial: &'a Params,
    /// The folder or the name of the original model.
    pub base: &'a str,
}

/// Saves `adapter_config.json` and `adapter_model.safetensors`, which PEFT loads.
///
/// Tensors that are trained besides the adapters, such as a head, are saved with their modules.
///
/// # Errors
/// If the model has no adapters, an element is not finite, or a file cannot be written.
pub fn save_adapter(
    dir: impl AsRef<Path>,
    config: &Config,
    adapter: &Adapter<'_>,
) -> Result<(), Error> {
    let dir = dir.as_ref();
    let graph = adapter.network.graph();
    let Some(first) = graph.adapters().first() else {
        return Err(Error::malformed(dir, "the model has no low-rank adapters"));
    };
    let (trained, initial) =
        (adapter.network.tensors(adapter.trained), adapter.network.tensors(adapter.initial));
    let rank = 2 * trained[first.left.index()].1.cols();
    let mut tensors: Vec<(String, Array)> = Vec::new();
    let mut targets = Vec::new();
    for pair in graph.adapters() {
        let values = |param: Param| (&*trained[param.index()].1, &*initial[param.index()].1);
        let (left, left_initial) = values(pair.left);
        let (right, right_initial) = values(pair.right);
        let module = module(trained[pair.weight.index()].0);
        let key = |factor: &str| format!("base_model.model.{module}.{factor}.weight");
        // PEFT computes x · lora_Aᵀ · lora_Bᵀ; lora_A is rank × inputs, lora_B outputs × rank.
        tensors.push((key("lora_A"), transposed(&side_by_side(right, right_initial, 1.0))));
        tensors.push((key("lora_B"), side_by_side(left, left_initial, -1.0)));
        targets.push(module.to_string());
    }
    let others = adapter.network.trainable().into_iter().map(|tensor| tensor.name);
    let modules: BTreeSet<String> =
        others.filter(|name| !is_adapter(name)).map(|name| module(&name).into()).collect();
    for (name, value) in &trained {
        if !is_adapter(name) && modules.contains(module(name)) {
            tensors.push((format!("base_model.model.{name}"), value.clone().into_owned()));
        }
    }
    tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
    let text = json!({
        "peft_type": "LORA",
        "task_type": match config.architecture {
            Architecture::Bert(_) | Architecture::Cnn(_) => "SEQ_CLS",
            Architecture::Gpt2(_) | Architecture::Llama(_) => "CAUSAL_LM",
        },
        "base_model_name_or_path": adapter.base,
        "r": rank,
        "lora_alpha": f64::from(first.scale) * rank as f64,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": matches!(config.architecture, Architecture::Gpt2(_)),
        "inference_mode": true,
        "target_modules": targets,
        "modules_to_save": if modules.is_empty() { None } else { Some(modules) },
    });
    let mut staging = Staging::new(dir)?;
    let listed: Vec<(&str, &Array)> =
        tensors.iter().map(|(name, value)| (name.as_str(), value)).collect();
    write_shard(&mut staging, ADAPTER_WEIGHTS, &listed, Dtype::F32)?;
    write_text(&mut staging, ADAPTER_CONFIG, &format!("{text:#}\n"))?;
    staging.commit(&[ADAPTER_CONFIG.into(), ADAPTER_WEIGHTS.into()])
}

/// The module of a tensor: its name without the last part.
fn module(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(module, _)| module)
}

fn transposed(x: &Array) -> Array {
    let (rows, cols) = (x.rows(), x.cols());
    Array::from_fn([cols, rows], |i| x.data()[i % rows * cols + i / rows])
}

/// The matrix [x, factor · y].
fn side_by_side(x: &Array, y: &Array, factor: f32) -> Array {
    let (rank, width) = (x.cols(), x.cols() + y.cols());
    Array::from_fn([x.rows(), width], |i| match (i / width, i % width) {
        (row, column) if column < rank => x.data()[row * rank + column],
        (row, column) => factor * y.data()[row * y.cols() + column - rank],
    })
}
