//! Small models of every architecture, and examples for them.

use cpu::Network;
use engine::{Example, Input, Target};
use model::activation::Activation;
use model::hf::{
    Architecture, BertConfig, Gpt2Config, LlamaConfig, Pooling, RopeConfig, RopeScaling,
};
use model::patches::ImageShape;
use model::{Cnn, Graph, Lora, Loss, Mlp};
use protocol::Params;
use tensor::Array;

/// The kinds of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Gpt2Tied,
    Gpt2Untied,
    Gpt2Lora,
    Llama,
    LlamaTied,
    LlamaLora,
    Bert,
    BertMean,
    Cnn,
    FlatCnn,
    Mlp,
    BertLabels,
    BertValue,
    MlpLabels,
    MlpValue,
}

pub(crate) const ALL: [Kind; 15] = [
    Kind::Gpt2Tied,
    Kind::Gpt2Untied,
    Kind::Gpt2Lora,
    Kind::Llama,
    Kind::LlamaTied,
    Kind::LlamaLora,
    Kind::Bert,
    Kind::BertMean,
    Kind::Cnn,
    Kind::FlatCnn,
    Kind::Mlp,
    Kind::BertLabels,
    Kind::BertValue,
    Kind::MlpLabels,
    Kind::MlpValue,
];

const VOCAB: usize = 13;
const MAX_LENGTH: usize = 24;
const IMAGE: ImageShape = ImageShape { height: 6, width: 4, channels: 2 };

fn graph(kind: Kind) -> Graph {
    let lora = || Some(Lora { rank: 2, alpha: 3.0, on: Vec::new() });
    let gpt2 = |tied| {
        Architecture::Gpt2(Gpt2Config {
            vocab: VOCAB,
            positions: MAX_LENGTH,
            width: 8,
            layers: 2,
            heads: 2,
            inner: 20,
            activation: Activation::GeluTanh,
            epsilon: 1e-5,
            tied,
        })
    };
    let llama = |tied| {
        Architecture::Llama(LlamaConfig {
            vocab: VOCAB,
            positions: MAX_LENGTH,
            width: 8,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 4,
            inner: 12,
            epsilon: 1e-5,
            rope: RopeConfig { theta: 100.0, scaling: RopeScaling::None },
            tied,
            attention_bias: true,
            mlp_bias: true,
        })
    };
    let bert_of = |labels, pooling| {
        Architecture::Bert(BertConfig {
            vocab: VOCAB,
            positions: MAX_LENGTH,
            types: 2,
            width: 8,
            layers: 2,
            heads: 2,
            inner: 12,
            activation: Activation::GeluErf,
            epsilon: 1e-5,
            labels,
            pooling,
        })
        .graph(None)
    };
    let bert = |labels| bert_of(labels, Pooling::FirstToken);
    let mlp = |classes| {
        Mlp { input: 7, hidden: vec![9, 5], classes, activation: Activation::Tanh }.graph()
    };
    match kind {
        Kind::Gpt2Tied => gpt2(true).graph(None),
        Kind::Gpt2Untied => gpt2(false).graph(None),
        Kind::Gpt2Lora => gpt2(true).graph(lora()),
        Kind::Llama => llama(false).graph(None),
        Kind::LlamaTied => llama(true).graph(None),
        Kind::LlamaLora => llama(false).graph(lora()),
        Kind::Bert => bert(3),
        Kind::BertMean => bert_of(3, Pooling::Mean),
        Kind::BertLabels => bert(3).with_loss(Loss::BinaryCrossEntropy),
        Kind::BertValue => bert(1).with_loss(Loss::SquaredError),
        Kind::Cnn => Cnn {
            image: IMAGE,
            stages: vec![4, 6],
            activation: Activation::Relu,
            groups: 2,
            global_pooling: true,
            classes: 3,
        }
        .graph(),
        Kind::FlatCnn => Cnn {
            image: IMAGE,
            stages: vec![4, 6],
            activation: Activation::Tanh,
            groups: 0,
            global_pooling: false,
            classes: 3,
        }
        .graph(),
        Kind::Mlp => mlp(3),
        Kind::MlpLabels => mlp(3).with_loss(Loss::BinaryCrossEntropy),
        Kind::MlpValue => mlp(1).with_loss(Loss::SquaredError),
    }
}

/// Returns a pseudo-random number between −1 and 1.
pub(crate) fn noise(seed: u64, index: usize) -> f32 {
    let mut x = (seed << 32).wrapping_add(index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x ^= x >> 31;
    x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^= x >> 29;
    (x >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

/// Returns a network with random parameters: gains are not one, biases are not zero.
pub(crate) fn network(kind: Kind, seed: u64) -> (Network, Params) {
    let graph = graph(kind);
    let values = graph.params().iter().enumerate().map(|(k, spec)| {
        let vector = spec.shape.len() == 1;
        let base = if vector && spec.name.ends_with("weight") { 1.0 } else { 0.0 };
        let scale = if vector { 0.3 } else { 0.5 };
        Array::from_fn(spec.shape.as_slice(), |i| base + scale * noise(seed + 1000 * k as u64, i))
    });
    let values = values.collect();
    let lora = !graph.adapters().is_empty();
    Network::new(graph, values, |name| !lora || name.contains(".lora_")).unwrap()
}

/// Returns an example for a model of this kind.
///
/// `length` is the number of tokens; the first `masked` tokens have no target.
pub(crate) fn example(kind: Kind, seed: u64, length: usize, masked: usize) -> Example {
    let token = |i: usize| ((noise(seed, i) + 1.0) * 0.5 * VOCAB as f32) as u32 % VOCAB as u32;
    let class = (token(99) % 3).min(2);
    let features = |count: usize| (0..count).map(|i| noise(seed, i)).collect();
    match kind {
        Kind::Cnn | Kind::FlatCnn => Example::features(features(IMAGE.len()), class),
        Kind::Mlp => Example::features(features(7), class),
        Kind::Bert | Kind::BertMean => Example::labelled((0..length).map(token).collect(), class),
        // From no label to all of them.
        Kind::BertLabels | Kind::MlpLabels | Kind::BertValue | Kind::MlpValue => {
            let target = match kind {
                Kind::BertLabels | Kind::MlpLabels => {
                    Target::Labels((0..token(98) % 4).map(|k| (class + k) % 3).collect())
                }
                _ => Target::Value(2.0 * noise(seed, 97)),
            };
            let input = match kind {
                Kind::BertLabels | Kind::BertValue => {
                    Input::Tokens((0..length).map(token).collect())
                }
                _ => Input::Features(features(7)),
            };
            Example::new(input, target)
        }
        _ => Example::continuation((0..length).map(token).collect(), masked),
    }
}

/// Returns the example without targets.
pub(crate) fn without_targets(example: Example) -> Example {
    let mut part = example.parts()[0].clone();
    if let Target::Next(targets) = &mut part.target {
        targets.fill(Target::NONE);
    }
    part.into()
}
