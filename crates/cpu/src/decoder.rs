//! Decoding of texts with cached keys and values: only new tokens are computed.

use crate::network::Network;
use crate::pass::Mode;
use engine::Error;
use model::{InputShape, Space};
use protocol::Params;
use tensor::decoding::KeyValueCache;

/// Cached keys and values, by layer and text.
#[derive(Default)]
pub(crate) struct Cache {
    layers: Vec<Vec<KeyValueCache>>,
}

impl Cache {
    /// Returns the cached keys and values of all texts in a layer.
    pub(crate) fn layer(&mut self, index: usize) -> &mut [KeyValueCache] {
        &mut self.layers[index]
    }
}

/// Decodes a batch of texts with a causal language model.
///
/// ```
/// use cpu::{Decoder, Network};
/// use model::{Checkpoint, Decoder as _, Preset, hf};
///
/// let new = Checkpoint::new(hf::Config::new(Preset::Tiny.architecture()), None, 0)?;
/// let (mut network, params) = Network::new(new.graph, new.values, |_| true)?;
/// let mut decoder = Decoder::new(&mut network, &params)?;
/// let logits = decoder.start(&[&[1, 2, 3]])?;
/// assert_eq!((logits.len(), decoder.lengths()), (decoder.vocab(), [3].as_slice()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Decoder<'a> {
    network: &'a mut Network,
    params: &'a Params,
    cache: Cache,
    lengths: Vec<usize>,
}

impl<'a> Decoder<'a> {
    /// Creates a decoder without texts.
    ///
    /// # Errors
    /// If the model is not a causal language model, or the parameters do not fit it.
    pub fn new(network: &'a mut Network, params: &'a Params) -> Result<Self, Error> {
        network.check(params)?;
        let graph = &network.graph;
        let causal = matches!(graph.input(), InputShape::Tokens { .. })
            && graph.shape(graph.logits()).space == Space::Targets
            && graph.ops().iter().all(|op| op.operation().is_causal());
        if causal {
            // Decoding overwrites the batch of an observation.
            network.observed = None;
            Ok(Self { network, params, cache: Cache::default(), lengths: Vec::new() })
        } else {
            Err(Error::Params("decoding: expected a causal language model".into()))
        }
    }

    /// Appends tokens to the texts and returns the logits of their next tokens.
    fn extend(&mut self, texts: &[&[u32]]) -> Result<Vec<f32>, Error> {
        let Network { graph, batch, buffers, workspace, .. } = &mut *self.network;
        buffers.release(workspace);
        batch.pack_continuations(graph, texts, &self.lengths)?;
        let mut pass = self.network.pass(self.params, Mode::Inference);
        pass.cache = Some(&mut self.cache);
        for index in 0..pass.graph.ops().len() {
            pass.layer(index).forward(index, &mut pass);
            pass.free_after_forward(index);
        }
        let network = &mut *self.network;
        let logits = std::mem::take(&mut network.buffers.values[network.graph.logits().index()]);
        network.buffers.release(&mut network.workspace);
        self.lengths.iter_mut().zip(texts).for_each(|(length, text)| *length += text.len());
        Ok(logits)
    }
}

impl model::Decoder for Decoder<'_> {
    fn vocab(&self) -> usize {
        self.network.graph.classes()
    }

    fn max_length(&self) -> usize {
        match self.network.graph.input() {
            InputShape::Tokens { max_length, .. } => max_length,
            InputShape::Features(_) => 0,
        }
    }

    fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    fn start(&mut self, texts: &[&[u32]]) -> Result<Vec<f32>, Error> {
        self.cache.layers =
            vec![vec![KeyValueCache::default(); texts.len()]; self.network.graph.ops().len()];
        self.lengths = vec![0; texts.len()];
        self.extend(texts)
    }

    fn advance(&mut self, parents: &[usize], tokens: &[u32]) -> Result<Vec<f32>, Error> {
        if parents.len() != tokens.len()
            || parents.iter().any(|&parent| parent >= self.lengths.len())
        {
            return Err(Error::Params(format!(
                "expected one parent below {} for each of {} tokens, got {parents:?}",
                self.lengths.len(),
                tokens.len()
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
        let texts: Vec<&[u32]> = tokens.chunks(1).collect();
        self.extend(&texts)
    }
}
