//! A model as it lies on disk: configuration and weights in the Hugging Face layout.

use crate::builder::Lora;
use crate::graph::Graph;
use crate::hf::{self, Architecture, Config, SaveOptions, Weights};
use crate::network::{Device, Network};
use crate::{Error, init};
use protocol::Params;
use std::path::Path;
use tensor::Array;

/// A configuration, the graph it describes, and a value for each parameter.
///
/// ```
/// use model::{Checkpoint, Preset, hf};
///
/// let config = hf::Config::new(Preset::Tiny.architecture());
/// let new = Checkpoint::new(config, None, 0)?;
/// assert_eq!(new.values.len(), new.graph.params().len());
/// # Ok::<(), model::Error>(())
/// ```
#[derive(Debug)]
pub struct Checkpoint {
    /// The configuration.
    pub config: Config,
    /// The model.
    pub graph: Graph,
    /// A value for each of the graph's parameters.
    pub values: Vec<Array>,
    /// Parameters that the files did not have and that start anew: a classification head, low-rank
    /// adapters.
    pub fresh: Vec<String>,
}

impl Checkpoint {
    /// A new model, from public randomness.
    ///
    /// # Errors
    /// If a side makes no sense.
    pub fn new(config: Config, lora: Option<Lora>, seed: u64) -> Result<Self, Error> {
        config.architecture.check()?;
        check(lora.as_ref())?;
        let graph = config.architecture.graph(lora);
        let mut values = graph.init(seed)?;
        graph.subtract_adapters(&mut values);
        let fresh = graph.params.iter().map(|spec| spec.name.clone()).collect();
        Ok(Self { config, graph, values, fresh })
    }

    /// Reads a directory. What it lacks of a classification head, and low-rank adapters, start
    /// from `seed`.
    ///
    /// # Errors
    /// If a file is missing or damaged, if a tensor is missing, has another shape or is not finite,
    /// or if there is a tensor that the model has no place for.
    pub fn open(dir: impl AsRef<Path>, lora: Option<Lora>, seed: u64) -> Result<Self, Error> {
        Self::open_for(dir, lora, seed, 0)
    }

    /// The same for a task of so many classes: a classification head that the directory lacks has
    /// that many. 0 leaves it as the configuration has it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_for(
        dir: impl AsRef<Path>,
        lora: Option<Lora>,
        seed: u64,
        classes: usize,
    ) -> Result<Self, Error> {
        let dir = dir.as_ref();
        check(lora.as_ref())?;
        let mut config = Config::read(dir)?;
        let weights = Weights::open(dir)?;
        if let Architecture::Bert(bert) = &mut config.architecture
            && classes > 0
            && !weights.contains("classifier.weight")
        {
            bert.labels = classes;
        }
        let graph = config.architecture.graph(lora);
        let mut fresh = Vec::new();
        let mut values = Vec::with_capacity(graph.params.len());
        for (stream, spec) in graph.params.iter().enumerate() {
            // Base models are saved without the prefix.
            let bare = spec
                .name
                .strip_prefix("transformer.")
                .or(spec.name.strip_prefix("bert."))
                .unwrap_or(&spec.name);
            let names = [spec.name.as_str(), bare];
            let optional = is_adapter(&spec.name) || spec.name.starts_with("classifier.");
            if optional && !weights.contains(names[0]) {
                fresh.push(spec.name.clone());
                values.push(init::one(spec, seed, stream as u64)?);
            } else {
                values.push(weights.load(weights.find(&names)?, &spec.shape)?);
            }
        }
        tied_head(&config, &graph, &values, &weights, dir)?;
        weights.all_used()?;
        graph.subtract_adapters(&mut values);
        Ok(Self { config, graph, values, fresh })
    }

    /// Starts low-rank adapters from the largest singular values of their weights, instead of
    /// small orthonormal factors. The model stays what it is.
    ///
    /// # Errors
    /// If a decomposition fails.
    pub fn with_spectral_start(mut self) -> Result<Self, Error> {
        self.graph.init_adapters_spectrally(&mut self.values)?;
        Ok(self)
    }

    /// Gives a model whose head is its token table a head of its own, which starts as a copy.
    #[must_use]
    pub fn with_own_head(mut self) -> Self {
        let (tied, table) = match &mut self.config.architecture {
            Architecture::Gpt2(config) => (&mut config.tied, "transformer.wte.weight"),
            Architecture::Llama(config) => (&mut config.tied, "model.embed_tokens.weight"),
            Architecture::Bert(_) | Architecture::Cnn(_) => return self,
        };
        if !std::mem::take(tied) {
            return self;
        }
        let graph = self.config.architecture.graph(self.graph.lora.clone());
        let old = std::mem::replace(&mut self.graph, graph);
        let mut values: Vec<Option<Array>> = self.values.into_iter().map(Some).collect();
        let copy = old.param_named(table).and_then(|param| values[param.0].clone());
        // Everything else keeps its name.
        let value = |spec: &crate::ParamSpec| {
            old.param_named(&spec.name)
                .and_then(|param| values[param.0].take())
                .or_else(|| copy.clone())
        };
        self.values = self.graph.params.iter().filter_map(value).collect();
        self
    }

    /// Adds a token to the vocabulary. Its rows, in the token table and in a head of its own (with
    /// its low-rank adapter), are the means of the others.
    #[must_use]
    pub fn with_pad(mut self) -> Self {
        let vocab = match &mut self.config.architecture {
            Architecture::Cnn(_) => return self,
            Architecture::Gpt2(config) => &mut config.vocab,
            Architecture::Llama(config) => &mut config.vocab,
            Architecture::Bert(config) => &mut config.vocab,
        };
        let rows = *vocab;
        *vocab += 1;
        self.config.others.insert("pad_token_id".into(), rows.into());
        // The mean of weight + scale · A Bᵀ is that of the weight and that of A, row by row.
        const TABLES: [&str; 5] = [
            "transformer.wte.weight",
            "model.embed_tokens.weight",
            "bert.embeddings.word_embeddings.weight",
            "lm_head.weight",
            "lm_head.lora_left",
        ];
        for (spec, value) in self.graph.params.iter().zip(&mut self.values) {
            if TABLES.contains(&spec.name.as_str()) {
                *value = hf::append_mean_row(value);
            }
        }
        self.graph = self.config.architecture.graph(self.graph.lora.clone());
        self
    }

    /// Puts the model on a device. Returns the configuration, the network and what it trains.
    ///
    /// # Errors
    /// As [`Device::network`].
    pub fn network(
        self,
        device: &dyn Device,
        trainable: impl Fn(&str) -> bool,
    ) -> Result<(Config, Box<dyn Network>, Params), Error> {
        let (network, params) = device.network(self.graph, self.values, &trainable)?;
        Ok((self.config, network, params))
    }

    /// Writes `network` at `params` into a directory, low-rank adapters merged, so that anything
    /// that reads the layout can use it.
    ///
    /// # Errors
    /// If a file cannot be written, or a value is not finite.
    pub fn save(
        dir: impl AsRef<Path>,
        config: &Config,
        network: &dyn Network,
        params: &Params,
        options: &SaveOptions<'_>,
    ) -> Result<(), Error> {
        let tensors = network.tensors(params);
        let merged = (!network.graph().pairs.is_empty()).then(|| {
            let mut values: Vec<Array> =
                tensors.iter().map(|(_, value)| value.clone().into_owned()).collect();
            network.graph().merge_adapters(&mut values);
            values
        });
        let tensors: Vec<(&str, &Array)> = tensors
            .iter()
            .enumerate()
            .map(|(index, (name, value))| {
                (*name, merged.as_ref().map_or(&**value, |merged| &merged[index]))
            })
            .filter(|(name, _)| !is_adapter(name))
            .collect();
        hf::save(dir, config, &tensors, options)
    }
}

/// Whether a parameter is a factor of a low-rank adapter.
fn is_adapter(name: &str) -> bool {
    name.ends_with(".lora_left") || name.ends_with(".lora_right")
}

fn check(lora: Option<&Lora>) -> Result<(), Error> {
    match lora {
        Some(lora) if lora.rank == 0 || !lora.alpha.is_finite() => Err(Error::Graph(format!(
            "low-rank adapters need a rank of 1 or more and a finite alpha, got {} and {}",
            lora.rank, lora.alpha
        ))),
        _ => Ok(()),
    }
}

/// A tied model's files may hold the head all the same. Then it must be the table.
fn tied_head(
    config: &Config,
    graph: &Graph,
    values: &[Array],
    weights: &Weights,
    dir: &Path,
) -> Result<(), Error> {
    let table = match &config.architecture {
        Architecture::Gpt2(config) if config.tied => "transformer.wte.weight",
        Architecture::Llama(config) if config.tied => "model.embed_tokens.weight",
        _ => return Ok(()),
    };
    let Some(table) = graph.param_named(table).map(|param| &values[param.0]) else { return Ok(()) };
    if weights.contains("lm_head.weight")
        && weights.load("lm_head.weight", table.shape())? != *table
    {
        return Err(Error::malformed(
            dir,
            "the configuration ties head and token table, but \"lm_head.weight\" differs from the \
             table",
        ));
    }
    Ok(())
}
