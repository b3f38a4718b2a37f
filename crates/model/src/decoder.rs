//! Texts that grow token by token: keys and values of what came before are kept, and only new
//! tokens are computed.

use crate::graph::{Intake, Space};
use crate::run::Purpose;
use crate::{Error, Network};
use protocol::Params;
use tensor::decoding::KeyValueCache;

/// Keys and values, by layer and text.
#[derive(Default)]
pub(crate) struct Cache {
    layers: Vec<Vec<KeyValueCache>>,
}

impl Cache {
    /// The pasts of all texts in a layer.
    pub(crate) fn layer(&mut self, index: usize) -> &mut [KeyValueCache] {
        &mut self.layers[index]
    }
}

/// A causal language model at work on several texts at once.
pub struct Decoder<'a> {
    network: &'a mut Network,
    at: &'a Params,
    cache: Cache,
    lengths: Vec<usize>,
}

impl<'a> Decoder<'a> {
    /// For a model that predicts the next token from those before it.
    ///
    /// # Errors
    /// If it is another kind of model.
    pub fn new(network: &'a mut Network, at: &'a Params) -> Result<Self, Error> {
        network.check(at)?;
        let graph = &network.graph;
        let causal = matches!(graph.intake, Intake::Tokens { .. })
            && graph.forms[graph.logits.0].space == Space::Targets
            && graph.layers.iter().all(|layer| layer.is_causal());
        if causal {
            Ok(Self { network, at, cache: Cache::default(), lengths: Vec::new() })
        } else {
            Err(Error::Model("only a causal language model can go on with a text".into()))
        }
    }

    /// How many tokens there are to choose from.
    pub fn vocab(&self) -> usize {
        self.network.graph.classes()
    }

    /// The most tokens a text can have.
    pub fn longest(&self) -> usize {
        match self.network.graph.intake {
            Intake::Tokens { longest, .. } => longest,
            Intake::Numbers(_) => 0,
        }
    }

    /// How long the texts are.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// Begins texts, in place of those before. For each, the logits of the token that follows; row
    /// after row.
    ///
    /// # Errors
    /// If a text is empty, too long, or has a token that the model does not know.
    pub fn start(&mut self, texts: &[&[u32]]) -> Result<Vec<f32>, Error> {
        self.cache.layers =
            vec![vec![KeyValueCache::default(); texts.len()]; self.network.graph.layers.len()];
        self.lengths = vec![0; texts.len()];
        self.go_on(texts)
    }

    /// Text i becomes a copy of what text `parents[i]` was, and `tokens[i]`. For each, the logits
    /// of the token that follows.
    ///
    /// # Errors
    /// As [`start`](Self::start), or if there is no such parent.
    pub fn advance(&mut self, parents: &[usize], tokens: &[u32]) -> Result<Vec<f32>, Error> {
        if parents.len() != tokens.len()
            || parents.iter().any(|&parent| parent >= self.lengths.len())
        {
            return Err(Error::Model(format!(
                "{} tokens for parents among {} texts",
                tokens.len(),
                self.lengths.len()
            )));
        }
        let in_place = parents.len() == self.lengths.len()
            && parents.iter().enumerate().all(|(i, &parent)| i == parent);
        if !in_place {
            for layer in &mut self.cache.layers {
                *layer = parents.iter().map(|&parent| layer[parent].clone()).collect();
            }
            self.lengths = parents.iter().map(|&parent| self.lengths[parent]).collect();
        }
        let each: Vec<&[u32]> = tokens.chunks(1).collect();
        self.go_on(&each)
    }

    fn go_on(&mut self, texts: &[&[u32]]) -> Result<Vec<f32>, Error> {
        let Network { graph, batch, buffers, space, .. } = &mut *self.network;
        buffers.release(space);
        batch.pack_more(graph, texts, &self.lengths)?;
        let mut run = self.network.run(self.at, Purpose::Inference);
        run.cache = Some(&mut self.cache);
        for index in 0..run.graph.layers.len() {
            run.graph.layers[index].forward(index, &mut run);
            run.forget_forward(index);
        }
        let network = &mut *self.network;
        let logits = std::mem::take(&mut network.buffers.values[network.graph.logits.0]);
        network.buffers.release(&mut network.space);
        self.lengths.iter_mut().zip(texts).for_each(|(length, text)| *length += text.len());
        Ok(logits)
    }
}
