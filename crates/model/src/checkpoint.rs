//! Checkpoints: a configuration and weights in the Hugging Face layout.

use crate::graph::{Graph, Loss};
use crate::hf::{self, Architecture, Config, Pooling, SaveOptions, Weights};
use crate::lora::Lora;
use crate::network::{Device, Network};
use crate::{Error, init};
use protocol::Params;
use std::path::Path;
use tensor::Array;

/// A model with the values of its parameters, as loaded from or saved to a directory.
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
    /// The graph that the configuration describes.
    pub graph: Graph,
    /// Values of the graph's parameters, in order.
    pub values: Vec<Array>,
    /// Names of newly initialized parameters, which the files do not contain.
    ///
    /// These are a classification head, a pooler or low-rank adapters, or all parameters of a new
    /// model.
    pub initialized: Vec<String>,
}

/// The head of a model whose files have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewHead {
    /// Number of classes, labels or numbers.
    pub outputs: usize,
    /// The loss.
    pub loss: Loss,
}

impl Checkpoint {
    /// Creates a new model and initializes its parameters from public randomness.
    ///
    /// # Errors
    /// If the configuration or the adapters are invalid.
    pub fn new(config: Config, lora: Option<Lora>, seed: u64) -> Result<Self, Error> {
        config.check()?;
        check_lora(lora.as_ref())?;
        let graph = config.graph(lora);
        let mut values = graph.init(seed)?;
        graph.subtract_adapters(&mut values);
        let initialized = graph.params.iter().map(|spec| spec.name.clone()).collect();
        Ok(Self { config, graph, values, initialized })
    }

    /// Loads a model from a directory.
    ///
    /// A missing classification head or pooler and low-rank adapters are initialized from `seed`.
    ///
    /// # Errors
    /// If a file is missing or invalid, if a tensor is missing, has another shape or is not finite,
    /// or if a tensor is not a parameter of the model.
    pub fn open(dir: impl AsRef<Path>, lora: Option<Lora>, seed: u64) -> Result<Self, Error> {
        Self::open_with_head(dir, lora, seed, None)
    }

    /// Loads a model for a classification or regression task.
    ///
    /// If the directory has no classification head, the new head is as `new_head` says, or as the
    /// configuration states if that is `None`.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_with_head(
        dir: impl AsRef<Path>,
        lora: Option<Lora>,
        seed: u64,
        new_head: Option<NewHead>,
    ) -> Result<Self, Error> {
        let dir = dir.as_ref();
        check_lora(lora.as_ref())?;
        Self::from_weights(Config::read(dir)?, &Weights::open(dir)?, lora, seed, new_head)
    }

    /// Loads a model from its configuration and its weights, as [`open`](Self::open) does.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn from_weights(
        mut config: Config,
        weights: &Weights,
        lora: Option<Lora>,
        seed: u64,
        new_head: Option<NewHead>,
    ) -> Result<Self, Error> {
        check_lora(lora.as_ref())?;
        if let Architecture::Bert(bert) = &mut config.architecture
            && let Some(NewHead { outputs, loss }) = new_head
            && !weights.contains("classifier.weight")
        {
            (bert.labels, config.loss) = (outputs, loss);
            config.check()?;
        }
        let graph = config.graph(lora);
        let mut initialized = Vec::new();
        let mut values = Vec::with_capacity(graph.params.len());
        for (stream, spec) in graph.params.iter().enumerate() {
            // Checkpoints of base models have no prefix.
            let unprefixed = spec
                .name
                .strip_prefix("transformer.")
                .or(spec.name.strip_prefix("bert."))
                .unwrap_or(&spec.name);
            let names = [spec.name.as_str(), unprefixed];
            let optional = is_adapter(&spec.name) || is_head(&spec.name);
            if optional && !names.iter().any(|name| weights.contains(name)) {
                initialized.push(spec.name.clone());
                values.push(init::param(spec, seed, stream as u64)?);
            } else {
                values.push(weights.load(weights.find(&names)?, &spec.shape)?);
            }
        }
        check_tied_head(&config, &graph, &values, weights)?;
        if let Architecture::Bert(bert) = &config.architecture
            && bert.pooling == Pooling::Mean
        {
            weights.skip("pooler.");
            weights.skip("bert.pooler.");
        }
        weights.check_all_used()?;
        graph.subtract_adapters(&mut values);
        Ok(Self { config, graph, values, initialized })
    }

    /// Reinitializes low-rank adapters from the largest singular values of their weights.
    ///
    /// The function that the model computes does not change.
    ///
    /// # Errors
    /// If a singular value decomposition fails.
    pub fn with_spectral_adapters(mut self) -> Result<Self, Error> {
        self.graph.init_adapters_spectrally(&mut self.values)?;
        Ok(self)
    }

    /// Unties the language model head from the token table; the head starts as a copy of it.
    #[must_use]
    pub fn with_untied_head(mut self) -> Self {
        let (tied, table) = match &mut self.config.architecture {
            Architecture::Gpt2(config) => (&mut config.tied, "transformer.wte.weight"),
            Architecture::Llama(config) => (&mut config.tied, "model.embed_tokens.weight"),
            Architecture::Bert(_) | Architecture::Cnn(_) => return self,
        };
        if !std::mem::take(tied) {
            return self;
        }
        let graph = self.config.graph(self.graph.lora.clone());
        let tied_graph = std::mem::replace(&mut self.graph, graph);
        let mut values: Vec<Option<Array>> = self.values.into_iter().map(Some).collect();
        let table = tied_graph.find_param(table).and_then(|param| values[param.0].clone());
        // The head is the only parameter that the tied graph does not have.
        let value = |spec: &crate::ParamSpec| {
            tied_graph
                .find_param(&spec.name)
                .and_then(|param| values[param.0].take())
                .or_else(|| table.clone())
        };
        self.values = self.graph.params.iter().filter_map(value).collect();
        self
    }

    /// Adds a padding token to the vocabulary.
    ///
    /// Its rows in the token table and in an untied head (and the head's low-rank adapter) are the
    /// means of the other rows.
    #[must_use]
    pub fn with_pad_token(mut self) -> Self {
        let vocab = match &mut self.config.architecture {
            Architecture::Cnn(_) => return self,
            Architecture::Gpt2(config) => &mut config.vocab,
            Architecture::Llama(config) => &mut config.vocab,
            Architecture::Bert(config) => &mut config.vocab,
        };
        let rows = *vocab;
        *vocab += 1;
        self.config.other_keys.insert("pad_token_id".into(), rows.into());
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
        self.graph = self.config.graph(self.graph.lora.clone());
        self
    }

    /// Loads the model onto a device. Returns the configuration, the network and its trained
    /// parameters.
    ///
    /// # Errors
    /// As for [`Device::network`].
    pub fn network(
        self,
        device: &dyn Device,
        trainable: impl Fn(&str) -> bool,
    ) -> Result<(Config, Box<dyn Network>, Params), Error> {
        let (network, params) = device.network(self.graph, self.values, &trainable)?;
        Ok((self.config, network, params))
    }

    /// Saves a network with the trained parameters `params` to a directory.
    ///
    /// Low-rank adapters are merged into their weights, so that `transformers` can load the model.
    ///
    /// # Errors
    /// If a file cannot be written, or an element is not finite.
    pub fn save(
        dir: impl AsRef<Path>,
        config: &Config,
        network: &dyn Network,
        params: &Params,
        options: &SaveOptions<'_>,
    ) -> Result<(), Error> {
        let tensors = network.tensors(params);
        let merged = (!network.graph().adapters.is_empty()).then(|| {
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

/// Returns whether a parameter is a factor of a low-rank adapter.
pub(crate) fn is_adapter(name: &str) -> bool {
    name.ends_with(".lora_left") || name.ends_with(".lora_right")
}

/// Returns whether a parameter belongs to a classification head or its pooler.
///
/// Checkpoints of encoders may lack them.
pub fn is_head(name: &str) -> bool {
    name.starts_with("classifier.") || name.starts_with("bert.pooler.")
}

fn check_lora(lora: Option<&Lora>) -> Result<(), Error> {
    match lora {
        Some(lora) if lora.rank == 0 || !lora.alpha.is_finite() => Err(Error::Graph(format!(
            "low-rank adapters: expected rank ≥ 1 and a finite alpha, got rank {} and alpha {}",
            lora.rank, lora.alpha
        ))),
        _ => Ok(()),
    }
}

/// Checks that the head in the files of a tied model, if there is one, equals the token table.
fn check_tied_head(
    config: &Config,
    graph: &Graph,
    values: &[Array],
    weights: &Weights,
) -> Result<(), Error> {
    let table = match &config.architecture {
        Architecture::Gpt2(config) if config.tied => "transformer.wte.weight",
        Architecture::Llama(config) if config.tied => "model.embed_tokens.weight",
        _ => return Ok(()),
    };
    let Some(table) = graph.find_param(table).map(|param| &values[param.0]) else { return Ok(()) };
    if weights.contains("lm_head.weight")
        && weights.load("lm_head.weight", table.shape())? != *table
    {
        return Err(Error::malformed(
            weights.path(),
            "the configuration ties the head to the token table, but \"lm_head.weight\" differs \
             from the table",
        ));
    }
    Ok(())
}
