//! Custom layers: correct layers are computed like built-in ones, incorrect layers are refused.

#![allow(clippy::unwrap_used)]

mod support;

use cpu::{GradientForm, Layer, Network, NormMethod, Pass, custom};
use engine::{Engine, Example, probe};
use model::activation::Activation;
use model::op::Operation;
use model::{Activations, Builder, Error, Graph, Init, Linear, Order, Param, Space, Value};
use protocol::{Blocks, Geometry, Params};
use std::sync::Arc;
use support::{close, difference, gradients, norm, run, weighted, zoo};
use tensor::Array;

const WIDTH: usize = 4;
const VOCAB: usize = 7;

/// Errors planted in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// The forward pass subtracts the mean over all rows of the batch.
    BatchMean,
    /// The gradient of a row includes a part of the next row's, which may be another example's.
    MixedRows,
    /// The gradient of the bias is the mean over the examples.
    MixedVectors,
    /// The backward pass does not add the gradient of the bias.
    NoVectors,
    /// A gradient form is missing.
    NoForm,
    /// A gradient form is missing, and the parameter is not declared.
    NoParam,
}

/// The layer y = x · gain + bias, with a gain and a bias for each column.
#[derive(Debug)]
struct ScaleShift {
    x: Value,
    gain: Param,
    bias: Param,
    out: Value,
    fault: Fault,
}

impl Operation for ScaleShift {
    fn inputs(&self) -> Vec<Value> {
        vec![self.x]
    }

    fn outputs(&self) -> Vec<Value> {
        vec![self.out]
    }

    fn params(&self) -> Vec<Param> {
        if self.fault == Fault::NoParam { vec![self.gain] } else { vec![self.gain, self.bias] }
    }
}

impl Layer for ScaleShift {
    fn gradient_forms(&self) -> Vec<(Param, GradientForm)> {
        let gain = (self.gain, GradientForm::Vector);
        match self.fault {
            Fault::NoForm | Fault::NoParam => vec![gain],
            _ => vec![gain, (self.bias, GradientForm::Vector)],
        }
    }

    fn saved_values(&self) -> Vec<Value> {
        vec![self.x]
    }

    fn forward(&self, _: usize, pass: &mut Pass<'_>) {
        let mut out = pass.alloc(self.out);
        let (gain, bias) = (pass.param(self.gain).data(), pass.param(self.bias).data());
        let x = pass.value(self.x);
        let mean = |j: usize| {
            let rows = (x.len() / WIDTH).max(1) as f32;
            x.iter().skip(j).step_by(WIDTH).sum::<f32>() / rows
        };
        let means: Vec<f32> = match self.fault {
            Fault::BatchMean => (0..WIDTH).map(mean).collect(),
            _ => vec![0.0; WIDTH],
        };
        for (i, (out, x)) in out.iter_mut().zip(x).enumerate() {
            let j = i % WIDTH;
            *out = (x - 0.1 * means[j]) * gain[j] + bias[j];
        }
        pass.set_value(self.out, out);
    }

    fn backward(&self, _: usize, pass: &mut Pass<'_>) {
        let Some(d) = pass.gradient(self.out) else { return };
        let offsets = pass.offsets(self.out);
        let parts = pass.parts();
        // One row for each part: the sum over its rows.
        let sums = |term: &dyn Fn(usize) -> f32, mut sums: Vec<f32>| {
            for (example, sums) in sums.chunks_exact_mut(WIDTH).enumerate() {
                for (j, sum) in sums.iter_mut().enumerate() {
                    let rows = offsets[example]..offsets[example + 1];
                    *sum = rows.map(|row| term(row * WIDTH + j)).sum();
                }
            }
            sums
        };
        if pass.trains(self.gain) {
            let buffer = pass.alloc_len(parts * WIDTH);
            let x = pass.value(self.x);
            let gradients = sums(&|i| d[i] * x[i], buffer);
            pass.add_vector_gradients(self.gain, gradients);
        }
        if pass.trains(self.bias) && self.fault != Fault::NoVectors {
            let buffer = pass.alloc_len(parts * WIDTH);
            let mut gradients = sums(&|i| d[i], buffer);
            if self.fault == Fault::MixedVectors {
                for j in 0..WIDTH {
                    let column = gradients.iter().skip(j).step_by(WIDTH);
                    let mean = column.sum::<f32>() / parts as f32;
                    gradients.iter_mut().skip(j).step_by(WIDTH).for_each(|x| *x = mean);
                }
            }
            pass.add_vector_gradients(self.bias, gradients);
        }
        pass.write_gradient(self.x, |pass, dx| {
            let gain = pass.param(self.gain).data();
            let next = |i: usize| d[(i + WIDTH) % d.len()];
            let mixed = if self.fault == Fault::MixedRows { 1e-3 } else { 0.0 };
            for (i, dx) in dx.iter_mut().enumerate() {
                *dx = (d[i] + mixed * next(i)) * gain[i % WIDTH];
            }
        });
    }
}

/// The layer y = x Wᵀ.
#[derive(Debug)]
struct Dense {
    x: Value,
    weight: Param,
    out: Value,
    forms: Vec<(Param, GradientForm)>,
}

impl Operation for Dense {
    fn inputs(&self) -> Vec<Value> {
        vec![self.x]
    }

    fn outputs(&self) -> Vec<Value> {
        vec![self.out]
    }

    fn params(&self) -> Vec<Param> {
        vec![self.weight]
    }
}

impl Layer for Dense {
    fn gradient_forms(&self) -> Vec<(Param, GradientForm)> {
        self.forms.clone()
    }

    fn forward(&self, _: usize, pass: &mut Pass<'_>) {
        let mut out = pass.alloc(self.out);
        let (x, weight) = (pass.value(self.x), pass.param(self.weight).data());
        for (out, x) in out.chunks_exact_mut(WIDTH).zip(x.chunks_exact(WIDTH)) {
            for (out, weight) in out.iter_mut().zip(weight.chunks_exact(WIDTH)) {
                *out = x.iter().zip(weight).map(|(x, w)| x * w).sum();
            }
        }
        pass.set_value(self.out, out);
    }

    fn backward(&self, _: usize, pass: &mut Pass<'_>) {
        let Some(d) = pass.gradient(self.out) else { return };
        pass.write_gradient(self.x, |pass, dx| {
            let weight = pass.param(self.weight).data();
            for (dx, d) in dx.chunks_exact_mut(WIDTH).zip(d.chunks_exact(WIDTH)) {
                for (i, dx) in dx.iter_mut().enumerate() {
                    *dx = d
                        .iter()
                        .zip(weight.iter().skip(i).step_by(WIDTH))
                        .map(|(d, w)| d * w)
                        .sum();
                }
            }
        });
    }
}

/// Adds a [`ScaleShift`] layer.
fn scale_shift(build: &mut Builder, x: Value, fault: Fault) -> Value {
    let gain = build.param("scale.gain", [WIDTH], Init::Ones);
    let bias = build.param("scale.bias", [WIDTH], Init::Zeros);
    let shape = build.shape(x);
    let out = build.custom_value(shape.space, shape.width);
    build.custom(custom(ScaleShift { x, gain, bias, out, fault }));
    out
}

/// Adds a [`Dense`] layer; `forms` returns gradient forms, given its input, weight and result.
fn dense(
    build: &mut Builder,
    x: Value,
    forms: impl Fn(Value, Param, Value) -> Vec<GradientForm>,
) -> Value {
    let weight = build.param("dense.weight", [WIDTH, WIDTH], Init::Normal { std: 0.5 });
    let shape = build.shape(x);
    let out = build.custom_value(shape.space, shape.width);
    let forms = forms(x, weight, out).into_iter().map(|form| (weight, form)).collect();
    build.custom(custom(Dense { x, weight, out, forms }));
    out
}

/// Returns the correct gradient form of a dense layer.
fn outer(x: Value, _: Param, out: Value) -> Vec<GradientForm> {
    vec![GradientForm::Outer { x, gradient: (out, 0, WIDTH), order: Order::OutIn }]
}

/// The input of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Features,
    Texts,
}

/// Builds a model: a linear layer, the operations of `body`, another linear layer and a head.
fn graph(kind: Kind, body: impl Fn(&mut Builder, Value) -> Value) -> Graph {
    let (mut build, x) = match kind {
        Kind::Features => {
            let mut build = Builder::features(WIDTH);
            let x = build.input();
            (build, x)
        }
        Kind::Texts => {
            let mut build = Builder::tokens(VOCAB, 16);
            let table = build.param("table", [VOCAB, WIDTH], Init::Normal { std: 0.5 });
            let x = build.embed_tokens(table);
            (build, x)
        }
    };
    let first = Linear::new("first", WIDTH, WIDTH).activation(Activation::Tanh);
    let h = build.linear(x, first);
    build.segment();
    let h = body(&mut build, h);
    build.segment();
    // Nonlinear, so that the mean over the rows of a text does not hide mixed rows.
    let last = Linear::new("last", WIDTH, WIDTH).activation(Activation::Tanh);
    let h = build.linear(h, last);
    let h = if build.shape(h).space == Space::Parts { h } else { build.mean(h) };
    let logits = build.linear(h, Linear::new("head", WIDTH, 3));
    build.finish(logits)
}

/// Builds a model with both custom layers; the second has a planted error.
fn custom_graph(kind: Kind, fault: Fault) -> Graph {
    graph(kind, |build, x| {
        let x = dense(build, x, outer);
        scale_shift(build, x, fault)
    })
}

fn network(graph: Graph) -> Result<(Network, Params), Error> {
    let value = |(k, spec): (usize, &model::ParamSpec)| {
        let base = if spec.name == "scale.gain" { 1.0 } else { 0.0 };
        Array::from_fn(spec.shape.as_slice(), |i| base + 0.5 * zoo::noise(1 + 1000 * k as u64, i))
    };
    let values = graph.params().iter().enumerate().map(value).collect();
    Network::new(graph, values, |_| true)
}

fn examples(kind: Kind) -> Vec<Example> {
    let token = |seed: u64, i: usize| ((zoo::noise(seed, i) + 1.0) * 100.0) as u32 % VOCAB as u32;
    let example = |seed: u64| match kind {
        Kind::Features => {
            let features = (0..WIDTH).map(|i| zoo::noise(seed, i)).collect();
            Example::features(features, (seed % 3) as u32)
        }
        Kind::Texts => {
            let length = 1 + (5 * seed as usize) % 11;
            let tokens = (0..length).map(|i| token(seed, i)).collect();
            Example::labelled(tokens, (seed % 3) as u32)
        }
    };
    (3..8).map(example).collect()
}

const KINDS: [Kind; 2] = [Kind::Features, Kind::Texts];

#[test]
fn gradients_equal_finite_differences() {
    for kind in KINDS {
        let (mut network, params) = network(custom_graph(kind, Fault::None)).unwrap();
        for example in &examples(kind)[..2] {
            let gradient = &gradients(&mut network, &params, &[example])[0];
            for k in 0..params.len() {
                for i in 0..params[k].len() {
                    let mut loss = |step: f32| {
                        let mut moved = params.clone();
                        moved[k].data_mut()[i] += step;
                        network.load(&moved).unwrap();
                        network.losses(&[example]).unwrap()[0]
                    };
                    let slope = (loss(1e-2) - loss(-1e-2)) / 2e-2;
                    let got = f64::from(gradient[k].data()[i]);
                    let name = &network.trainable()[k].name;
                    assert!((slope - got).abs() < 1e-3, "{kind:?} {name} {i}: {slope} {got}");
                }
            }
        }
    }
}

/// For identity and affine geometries, all norm methods, retained and recomputed activations.
#[test]
fn norms_and_sums_equal_those_of_single_examples() {
    for kind in KINDS {
        let (mut network, params) = network(custom_graph(kind, Fault::None)).unwrap();
        let examples = examples(kind);
        let examples: Vec<&Example> = examples.iter().collect();
        let alone = gradients(&mut network, &params, &examples);
        let fill = |base: f32, seed: u64| {
            let tensor = |(k, like): (usize, &Array)| {
                Array::from_fn(like.shape(), |i| base + 0.1 * zoo::noise(seed + k as u64, i))
            };
            Params::new(params.iter().enumerate().map(tensor).collect())
        };
        let affine = Geometry::Affine { center: fill(0.0, 500), scale: fill(0.7, 900) };
        let weight =
            |example: usize, block: usize| 0.25 + 0.5 * example as f64 - 0.05 * block as f64;
        for blocks in [Blocks::each(params.len()), Blocks::flat(params.len())] {
            let expected = weighted(&alone, &blocks, weight);
            for geometry in [&Geometry::Identity, &affine] {
                for activations in [Activations::Retain, Activations::Recompute] {
                    for method in [NormMethod::Ghost, NormMethod::Direct, NormMethod::Cheapest] {
                        network.set_activations(activations);
                        network.set_norm_method(method);
                        let outcome =
                            run(&mut network, &params, &examples, geometry, &blocks, weight);
                        let context = format!("{kind:?} {activations:?} {method:?}");
                        for (example, gradient) in alone.iter().enumerate() {
                            for block in 0..blocks.count() {
                                let got = outcome.norms[example][block];
                                let expected = norm(gradient, geometry, &blocks, block);
                                assert!(
                                    close(got, expected, 1e-4, 1e-6),
                                    "{context}, block {block}: {got} {expected}"
                                );
                            }
                        }
                        assert!(difference(&outcome.sum, &expected) < 1e-5, "{context}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_correct_layer_passes_the_probe() {
    for kind in KINDS {
        for activations in [Activations::Retain, Activations::Recompute] {
            let (mut network, params) = network(custom_graph(kind, Fault::None)).unwrap();
            network.set_activations(activations);
            probe(&mut network, &params).unwrap();
        }
    }
}

#[test]
fn a_layer_that_mixes_examples_is_refused() {
    for kind in KINDS {
        for fault in [Fault::BatchMean, Fault::MixedRows, Fault::MixedVectors] {
            let (mut network, params) = network(custom_graph(kind, fault)).unwrap();
            let error = probe(&mut network, &params).unwrap_err().to_string();
            assert!(error.contains("one example changes another's"), "{kind:?} {fault:?}: {error}");
        }
    }
}

#[test]
fn a_layer_that_adds_no_gradient_is_refused() {
    for kind in KINDS {
        let (mut network, params) = network(custom_graph(kind, Fault::NoVectors)).unwrap();
        let error = probe(&mut network, &params).unwrap_err().to_string();
        assert!(error.contains("scale.bias: trainable, but no example gives it"), "{error}");
    }
}

fn refused(graph: Graph, expected: &str) {
    match network(graph) {
        Err(Error::Graph(error)) => assert!(error.contains(expected), "{error}"),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("expected a refusal: {expected}"),
    }
}

#[test]
fn a_layer_without_a_gradient_form_is_refused() {
    for kind in KINDS {
        let part = "scale.bias: trained, but its layer has no gradient form for it";
        refused(custom_graph(kind, Fault::NoForm), part);
        refused(
            custom_graph(kind, Fault::NoParam),
            "scale.bias: trained, but the logits do not depend",
        );
        let part = "dense.weight: trained, but its layer has no gradient form for it";
        refused(graph(kind, |build, x| dense(build, x, |_, _, _| Vec::new())), part);
        // A parameter that is not trained needs no form.
        let graph = custom_graph(kind, Fault::NoForm);
        let values = graph.init(1).unwrap();
        let (mut network, params) =
            Network::new(graph, values, |name| name != "scale.bias").unwrap();
        probe(&mut network, &params).unwrap();
    }
}

/// Rows of different spaces must not be multiplied: they could belong to different examples.
#[test]
fn a_gradient_form_that_does_not_fit_is_refused() {
    let part = "dense.weight: the gradient form does not fit";
    let form = |x: Value, gradient: (Value, usize, usize)| {
        vec![GradientForm::Outer { x, gradient, order: Order::OutIn }]
    };
    for kind in KINDS {
        for (first, width) in [(0, WIDTH - 1), (1, WIDTH), (0, WIDTH + 1), (usize::MAX, WIDTH)] {
            let forms = |x, _, out| form(x, (out, first, width));
            refused(graph(kind, |build, x| dense(build, x, forms)), part);
        }
        let mixed = |x, weight, out| [outer(x, weight, out), vec![GradientForm::Vector]].concat();
        let part = "dense.weight: expected the same gradient form in all uses";
        refused(graph(kind, |build, x| dense(build, x, mixed)), part);
    }
    // The rows of one factor are tokens, those of the other examples.
    refused(
        graph(Kind::Texts, |build, x| {
            let mean = build.mean(x);
            dense(build, x, |_, _, out| form(mean, (out, 0, WIDTH)))
        }),
        part,
    );
    let index = model::op::Index::Token;
    let lookup = |_, _, gradient| vec![GradientForm::Lookup { index, gradient }];
    refused(graph(Kind::Features, |build, x| dense(build, x, lookup)), part);
}

/// An operation without a layer.
#[derive(Debug)]
struct Unknown {
    x: Value,
    out: Value,
}

impl Operation for Unknown {
    fn inputs(&self) -> Vec<Value> {
        vec![self.x]
    }

    fn outputs(&self) -> Vec<Value> {
        vec![self.out]
    }
}

#[test]
fn an_unknown_operation_is_refused() {
    for kind in KINDS {
        let graph = graph(kind, |build, x| {
            let shape = build.shape(x);
            let out = build.custom_value(shape.space, shape.width);
            build.custom(Arc::new(Unknown { x, out }));
            out
        });
        refused(graph, "the CPU engine has no layer for this operation");
    }
}
