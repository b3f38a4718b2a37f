//! Records and parameters made for the rounding of the engine: numbers near the ends of f32, uses
//! of one tensor that cancel, tokens that repeat, weights whose sum is large. None moves a sum by
//! more than its bound.

#![allow(clippy::unwrap_used)]

mod support;

use cpu::{Network, NormMethod};
use curator::{Curator, Door, Randomness, Records, Sampling};
use engine::Example;
use model::activation::Activation;
use model::{Builder, Graph, Linear, Lora, Mlp};
use protocol::{
    Announcement, Blocks, Bound, Clipping, Geometry, GradientQuery, Oracle, Params, Refused,
};

/// How a sum is asked for.
struct Ask<'a> {
    blocks: Blocks,
    clip: f64,
    geometry: &'a Geometry,
    clipping: Clipping,
}

impl Ask<'_> {
    /// One block for all tensors, or one for each, in plain coordinates.
    fn plain(blocks: Blocks, clip: f64) -> Self {
        Self { blocks, clip, geometry: &Geometry::Identity, clipping: Clipping::Cut }
    }

    /// How far the target's presence moves the sums, in clip bounds, at most.
    fn moved(
        &self,
        network: &dyn Fn() -> (Network, Params),
        others: &[Example],
        target: &Example,
    ) -> Result<f64, Refused> {
        let at = network().1;
        let bounds: Vec<Bound> = (0..self.blocks.count())
            .map(|k| Bound::new(self.clip, 1e-3 * (1.0 + k as f64 * 0.01)).unwrap())
            .collect();
        let query = GradientQuery {
            at: &at,
            geometry: self.geometry,
            blocks: &self.blocks,
            bounds: &bounds,
            clipping: self.clipping,
        };
        let release = |last: Option<Example>| {
            let mut places: Vec<Option<Example>> = others.iter().cloned().map(Some).collect();
            places.push(last);
            let records = Records::with_vacancies(places);
            let mut curator = Curator::new(
                network().0,
                records,
                Sampling::Full,
                Door::unlimited(),
                Randomness::fixed(5),
            )?;
            curator.set_micro_batch(64);
            curator.draw(&Announcement::gradient(&bounds))?;
            let answer = curator.gradient(&query)?.value;
            Ok::<_, Refused>(support::tensor_sums(answer.values(), curator.lot_size()))
        };
        let (with, without) = (release(Some(target.clone()))?, release(None)?);
        let apart = |block: usize| {
            let tensors = (0..at.len()).filter(|&k| self.blocks.of(k) == block);
            tensors
                .flat_map(|k| with[k].iter().zip(&without[k]))
                .map(|(x, y)| (x - y).powi(2))
                .sum::<f64>()
                .sqrt()
                / self.clip
        };
        Ok((0..self.blocks.count()).map(apart).fold(0.0, f64::max))
    }
}

fn lora_on_numbers() -> (Network, Params) {
    let mut build =
        Builder::features(8).with_lora(Some(Lora { rank: 2, alpha: 4.0, on: Vec::new() }));
    let x = build.input();
    let map = build.linear_layer(Linear::new("layers.0", 8, 3).init_std(0.5));
    let logits = build.apply_linear(x, &[map]);
    let graph = build.finish(logits);
    let values = graph.init(3).unwrap();
    Network::new(graph, values, |name| name.contains("lora")).unwrap()
}

/// Features so large that a weighted factor of the gradient, but not the gradient, leaves the range
/// of f32.
#[test]
fn huge_factors_of_a_small_gradient() {
    for class in 0..3 {
        for size in [1e20f32, 1e31, 1e33, 1e35] {
            let moved = Ask::plain(Blocks::flat(2), 1.0)
                .moved(&lora_on_numbers, &[], &Example::features(vec![size; 8], class))
                .unwrap();
            assert!(moved <= 1.0, "class {class} size {size:e}: {moved}");
        }
    }
}

fn steep() -> (Network, Params) {
    let graph: Graph =
        Mlp { input: 8, hidden: vec![4], classes: 2, activation: Activation::Relu }.graph();
    let mut values = graph.init(3).unwrap();
    let n = values.len();
    values[n - 2].data_mut().iter_mut().for_each(|x| *x *= 1e20);
    values[1].data_mut().fill(1e-20);
    Network::new(graph, values, |_| true).unwrap()
}

#[test]
fn steep_layers_and_tiny_bounds() {
    for clip in [1e-15, 1e-12, 1e-3] {
        let moved = Ask::plain(Blocks::each(4), clip)
            .moved(&steep, &[], &Example::features(vec![0.0; 8], 0))
            .unwrap();
        assert!(moved <= 1.0, "clip {clip:e}: {moved}");
    }
}

/// A table that is also the head, with f(±1) = ±1 and f′ = −1 in between: the gradients of its two
/// uses cancel.
fn tied_cancelling() -> (Network, Params) {
    let mut build = Builder::tokens(2, 8);
    let table = build.param("table", [2, 1], model::Init::Zeros);
    let z = build.embed_tokens(table);
    let h = build.linear(z, Linear::new("up", 1, 3).init_std(1.0).activation(Activation::Relu));
    let x = build.linear(h, Linear::new("down", 3, 1).init_std(1.0));
    let rows = build.target_rows(x);
    let head = build.tied_layer(table);
    let logits = build.apply_linear(rows, &[head]);
    let graph = build.finish(logits);
    let mut values = graph.init(1).unwrap();
    for (spec, v) in graph.params().iter().zip(values.iter_mut()) {
        let numbers: &[f32] = match spec.name.as_str() {
            "table" => &[1.0, -1.0],
            "up.weight" => &[10.0, 10.0, 1.0],
            "up.bias" => &[0.5, -0.5, 10.0],
            "down.weight" => &[4.0, -4.0, -1.0],
            "down.bias" => &[8.0],
            _ => unreachable!(),
        };
        v.data_mut().copy_from_slice(numbers);
    }
    Network::new(graph, values, |name| name == "table").unwrap()
}

#[test]
fn uses_of_one_tensor_that_cancel() {
    let record = Example::continuation(vec![0, 1, 0], 1);
    for clip in [1.0, 0.3, 0.01, 1e-6, 1e-9] {
        for others in [0, 21, 30] {
            let moved = Ask::plain(Blocks::flat(1), clip)
                .moved(&tied_cancelling, &vec![record.clone(); others], &record)
                .unwrap();
            assert!(moved <= 1.0, "clip {clip:e}, {others} others: {moved}");
        }
    }
}

fn tiny() -> (Network, Params) {
    let mut build = Builder::features(1);
    let x = build.input();
    let logits = build.linear(x, Linear::new("head", 1, 2).init_std(0.5));
    let graph = build.finish(logits);
    let values = graph.init(3).unwrap();
    Network::new(graph, values, |name| name.contains("weight")).unwrap()
}

/// With automatic clipping a weight can be as large as C/γ; a sum of them that could leave 64 bits
/// is refused before anything is computed.
#[test]
fn sums_of_large_weights() {
    let at = tiny().1;
    let like = |x: f32| {
        let mut params = at.zeros_like();
        params.fill(x);
        params
    };
    let geometry = Geometry::Affine { center: like(1e-8), scale: like(1.0) };
    let clipping = Clipping::Automatic { gamma: support::positive(1e-6) };
    let ask = Ask { blocks: Blocks::flat(1), clip: 1.0, geometry: &geometry, clipping };
    let record = Example::features(vec![0.0], 0);
    assert!(ask.moved(&tiny, &vec![record.clone(); 2000], &record).unwrap() <= 1.0);
    assert!(ask.moved(&tiny, &vec![record.clone(); 2200], &record).is_err());
}

fn long_text(w: f32) -> (Network, Params) {
    let mut build = Builder::tokens(2, 1 << 22);
    let table = build.param("table", [2, 1], model::Init::Zeros);
    let z = build.embed_tokens(table);
    let x = build.mean(z);
    let logits = build.linear(x, Linear::new("head", 1, 2).init_std(1.0));
    let graph = build.finish(logits);
    let mut values = graph.init(1).unwrap();
    for (spec, v) in graph.params().iter().zip(values.iter_mut()) {
        match spec.name.as_str() {
            "table" => v.data_mut().fill(0.0),
            "head.weight" => v.data_mut().copy_from_slice(&[w, -w]),
            _ => v.data_mut().fill(0.0),
        };
    }
    Network::new(graph, values, |name| name == "table").unwrap()
}

#[test]
fn the_same_token_again_and_again() {
    for n in [1 << 14, 1 << 17, 1 << 19] {
        for w in [1.0, 1.335, 1.586] {
            let moved = Ask::plain(Blocks::flat(1), 1e-3)
                .moved(&|| long_text(w), &[], &Example::labelled(vec![1; n], 0))
                .unwrap();
            assert!(moved <= 1.0, "{n} {w}: {moved}");
        }
    }
}

/// x = (K s, m u) of z = (u, s): the table's lookups have gradients K·U that cancel, its head
/// hardly any.
fn tied_lookups(u: &[f32], k: f32, m: f32, width: usize, method: NormMethod) -> (Network, Params) {
    let vocab = u.len();
    let mut build = Builder::tokens(vocab, 8);
    let table = build.param("table", [vocab, width], model::Init::Zeros);
    let z = build.embed_tokens(table);
    let x = build.linear(z, Linear::new("map", width, width).init_std(1.0).bias(false));
    let rows = build.target_rows(x);
    let head = build.tied_layer(table);
    let logits = build.apply_linear(rows, &[head]);
    let graph = build.finish(logits);
    let mut values = graph.init(1).unwrap();
    for (spec, v) in graph.params().iter().zip(values.iter_mut()) {
        v.fill(0.0);
        if spec.name == "table" {
            u.iter().enumerate().for_each(|(i, &u)| v.data_mut()[i * width] = u);
        } else {
            v.data_mut()[1] = k;
            v.data_mut()[width] = m;
        }
    }
    let (mut network, params) = Network::new(graph, values, |name| name == "table").unwrap();
    network.set_norm_method(method);
    (network, params)
}

#[test]
fn lookups_of_a_tied_table_that_cancel() {
    for (method, vocab, width) in
        [(NormMethod::Ghost, 4, 2), (NormMethod::Cheapest, 64, 64), (NormMethod::Direct, 64, 64)]
    {
        for seed in 0..40 {
            let mut noise = vec![0.0f32; 2];
            noise::PublicRandom::from_seed(seed).normals(0, &mut noise);
            let mut u = vec![0.0f32; vocab];
            (u[0], u[1], u[2]) = (noise[0], noise[1], -noise[0] - noise[1]);
            let record = Example::new(
                engine::Input::Tokens(vec![0, 0, 0, 1]),
                engine::Target::Next(vec![0, 1, 2, 3]),
            );
            let network = || tied_lookups(&u, 1e6, 1e-4, width, method);
            let moved = Ask::plain(Blocks::flat(1), 1e-6).moved(&network, &[], &record).unwrap();
            assert!(moved <= 1.0, "{method:?} {seed}: {moved}");
        }
    }
}
