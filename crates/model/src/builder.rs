//! Builds graphs, layer by layer.
//!
//! ```
//! use model::{Builder, Init};
//! use model::activation::Activation;
//!
//! // Four numbers in, three classes out.
//! let mut build = Builder::numbers(4);
//! let x = build.features();
//! let hidden = build.map("hidden", 4, 16, 0.5);
//! let head = build.map("head", 16, 3, 0.25);
//! let h = build.linear(x, &[hidden], Some(Activation::Relu));
//! let logits = build.linear(h, &[head], None);
//! let graph = build.finish(logits);
//! assert_eq!(graph.specs().len(), 4);
//! ```

use crate::graph::{Form, Graph, Init, Intake, Param, Space, Spec, Value};
use crate::layer::{
    Add, Attention, Embedding, FirstToken, GroupNorm, Index, Layer, Linear, LowRank, MeanRows,
    Normalise, Order, Part, Patches, Pool, Reshape, Rotate, SwiGlu, TargetRows,
};
use crate::lora::Pair;
use crate::plan::Plan;
use std::sync::Arc;
use tensor::activation::Activation;
use tensor::attention::Heads;
use tensor::norm::Norm;
use tensor::patches::{ImageShape, Window};
use tensor::pooling::Pool as Pooling;
use tensor::rope::{HeadColumns, Rope};

/// A graph in the making.
#[derive(Debug)]
pub struct Builder {
    graph: Graph,
    lora: Option<Lora>,
}

/// Low-rank additions to linear maps (Hu et al. 2022): W + (alpha/rank) · A Bᵀ.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// r
    pub rank: usize,
    /// The scale is alpha/rank.
    pub alpha: f32,
    /// Which maps: those whose weight's name contains one of these. Empty: all.
    pub on: Vec<String>,
}

/// A linear map in the making: its parameters.
#[derive(Clone, Copy, Debug)]
pub struct Map {
    weight: Param,
    bias: Option<Param>,
    order: Order,
    input: usize,
    width: usize,
    pair: Option<(Param, Param, usize, f32)>,
}

/// Starting scale of low-rank factors: orthonormal columns times this. Both are away from zero, so
/// the product has full rank.
const PAIR_SCALE: f32 = 0.02;

impl Builder {
    fn new(intake: Intake) -> Self {
        let (specs, forms, layers, cuts, pairs) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self {
            graph: Graph {
                specs,
                forms,
                layers,
                cuts,
                intake,
                logits: Value(0),
                pairs,
                lora: None,
            },
            lora: None,
        }
    }

    /// For texts.
    pub fn texts(vocab: usize, longest: usize) -> Self {
        Self::new(Intake::Tokens { vocab, longest })
    }

    /// For this many numbers an example.
    pub fn numbers(count: usize) -> Self {
        Self::new(Intake::Numbers(count))
    }

    /// Gives every map that is named from here on a low-rank addition, if `lora` wants it.
    pub fn with_lora(mut self, lora: Option<Lora>) -> Self {
        if lora.is_some() {
            self.graph.lora.clone_from(&lora);
        }
        self.lora = lora;
        self
    }

    /// A parameter.
    pub fn param(
        &mut self,
        name: impl Into<String>,
        shape: impl Into<Vec<usize>>,
        init: Init,
    ) -> Param {
        self.graph.specs.push(Spec { name: name.into(), shape: shape.into(), init });
        Param(self.graph.specs.len() - 1)
    }

    /// A linear map with `name.weight` (out × in) and `name.bias`.
    pub fn map(&mut self, name: &str, input: usize, output: usize, std: f32) -> Map {
        self.map_with(name, input, output, std, Order::OutIn, Some(Init::Zeros))
    }

    /// A linear map, its weight's order and its bias as wanted.
    pub fn map_with(
        &mut self,
        name: &str,
        input: usize,
        output: usize,
        std: f32,
        order: Order,
        bias: Option<Init>,
    ) -> Map {
        let shape = if order == Order::OutIn { [output, input] } else { [input, output] };
        let weight = self.param(format!("{name}.weight"), shape, Init::Normal { std });
        let bias = bias.map(|init| self.param(format!("{name}.bias"), [output], init));
        let pair = self
            .lora
            .clone()
            .filter(|lora| {
                lora.on.is_empty() || lora.on.iter().any(|part| name.contains(part.as_str()))
            })
            .map(|lora| {
                let rank = lora.rank.min(input).min(output);
                let init = Init::Orthonormal { scale: PAIR_SCALE };
                let left = self.param(format!("{name}.lora_left"), [output, rank], init);
                let right = self.param(format!("{name}.lora_right"), [input, rank], init);
                let scale = lora.alpha / rank as f32;
                self.graph.pairs.push(Pair { weight, left, right, scale, order });
                (left, right, rank, scale)
            });
        Map { weight, bias, order, input, width: output, pair }
    }

    /// The map x → x Tᵀ by a table T that is used elsewhere too.
    pub fn tied(&self, table: Param) -> Map {
        let (rows, input) = self.table(table);
        Map { weight: table, bias: None, order: Order::OutIn, input, width: rows, pair: None }
    }

    fn value(&mut self, space: Space, width: usize) -> Value {
        self.graph.forms.push(Form { space, width });
        Value(self.graph.forms.len() - 1)
    }

    fn like(&mut self, value: Value) -> Value {
        let form = self.graph.forms[value.0];
        self.value(form.space, form.width)
    }

    fn push(&mut self, layer: impl Layer + 'static) {
        self.graph.layers.push(Box::new(layer));
    }

    fn width(&self, value: Value) -> usize {
        self.graph.forms[value.0].width
    }

    fn space(&self, value: Value) -> Space {
        self.graph.forms[value.0].space
    }

    /// Rows and columns.
    fn table(&self, table: Param) -> (usize, usize) {
        let Spec { name, shape, .. } = &self.graph.specs[table.0];
        let &[rows, cols] = shape.as_slice() else {
            panic!("{name} is no table: its shape is {shape:?}")
        };
        (rows, cols)
    }

    fn embedding(&mut self, table: Param, index: Index) -> Value {
        let Intake::Tokens { vocab, longest } = self.graph.intake else {
            panic!("a model of numbers has no tokens")
        };
        let (rows, width) = self.table(table);
        let needed = match index {
            Index::Token => vocab,
            Index::Position => longest,
            Index::First => 1,
        };
        assert!(
            rows >= needed,
            "{}: {rows} rows, but texts may ask for {needed}",
            self.graph.specs[table.0].name
        );
        let out = self.value(Space::Tokens, width);
        self.push(Embedding { table, index, out });
        out
    }

    /// The table's row for each token.
    pub fn tokens(&mut self, table: Param) -> Value {
        self.embedding(table, Index::Token)
    }

    /// The table's row for each token's place in its text.
    pub fn positions(&mut self, table: Param) -> Value {
        self.embedding(table, Index::Position)
    }

    /// The table's first row, for each token: texts have one part.
    pub fn first_type(&mut self, table: Param) -> Value {
        self.embedding(table, Index::First)
    }

    /// The numbers of each example.
    pub fn features(&mut self) -> Value {
        let Intake::Numbers(count) = self.graph.intake else {
            panic!("a model of texts has no features")
        };
        let out = self.value(Space::Examples, count);
        self.push(Reshape { x: None, out });
        out
    }

    /// The numbers of each example as an image, channels last.
    pub fn image(&mut self, grid: ImageShape) -> Value {
        assert_eq!(self.graph.intake, Intake::Numbers(grid.len()), "an image of all numbers");
        let out = self.value(Space::Grid { height: grid.height, width: grid.width }, grid.channels);
        self.push(Reshape { x: None, out });
        out
    }

    /// a + b
    pub fn add(&mut self, a: Value, b: Value) -> Value {
        assert_eq!(self.graph.forms[a.0], self.graph.forms[b.0], "summands");
        let out = self.like(a);
        self.push(Add { a, b, out });
        out
    }

    /// Linear maps of x, side by side; an activation is for a single one.
    pub fn linear(&mut self, x: Value, maps: &[Map], activation: Option<Activation>) -> Value {
        assert!(activation.is_none() || maps.len() == 1, "an activation after one map");
        for map in maps {
            let name = &self.graph.specs[map.weight.0].name;
            assert_eq!(map.input, self.width(x), "{name} takes as many numbers as come");
        }
        let space = self.space(x);
        let out = self.value(space, maps.iter().map(|map| map.width).sum());
        let mut first = 0;
        let mut parts = Vec::new();
        for map in maps {
            let low_rank = map.pair.map(|(left, right, rank, scale)| LowRank {
                left,
                right,
                rank,
                scale,
                inner: self.value(space, rank),
            });
            parts.push(Part {
                weight: map.weight,
                order: map.order,
                bias: map.bias,
                low_rank,
                first,
                width: map.width,
            });
            first += map.width;
        }
        self.push(Linear { x, parts, activation, out });
        out
    }

    /// Layer norm with `name.weight` and `name.bias`.
    pub fn layer_norm(&mut self, name: &str, x: Value, epsilon: f32) -> Value {
        let width = self.width(x);
        let gain = self.param(format!("{name}.weight"), [width], Init::Ones);
        let bias = Some(self.param(format!("{name}.bias"), [width], Init::Zeros));
        let out = self.like(x);
        self.push(Normalise { norm: Norm::Layer, epsilon, x, gain, bias, out });
        out
    }

    /// Root-mean-square norm with `name.weight`.
    pub fn rms_norm(&mut self, name: &str, x: Value, epsilon: f32) -> Value {
        let width = self.width(x);
        let gain = self.param(format!("{name}.weight"), [width], Init::Ones);
        let out = self.like(x);
        self.push(Normalise { norm: Norm::Rms, epsilon, x, gain, bias: None, out });
        out
    }

    /// Group norm of an image with `name.weight` and `name.bias`.
    pub fn group_norm(&mut self, name: &str, x: Value, groups: usize, epsilon: f32) -> Value {
        let Space::Grid { height, width } = self.space(x) else {
            panic!("group norm is for images")
        };
        let channels = self.width(x);
        assert!(
            groups > 0 && channels.is_multiple_of(groups),
            "{channels} channels in {groups} groups"
        );
        let gain = self.param(format!("{name}.weight"), [channels], Init::Ones);
        let bias = self.param(format!("{name}.bias"), [channels], Init::Zeros);
        let out = self.like(x);
        self.push(GroupNorm { groups, epsilon, pixels: height * width, x, gain, bias, out });
        out
    }

    /// Turns queries and keys (side by side with the values) by their positions, in place: nothing
    /// else may read `qkv`.
    pub fn rotate(&mut self, rope: &Arc<Rope>, heads: Heads, qkv: Value) -> Value {
        assert_eq!(self.width(qkv), heads.width(), "queries, keys and values");
        assert_eq!(rope.dim(), heads.dim, "an angle for each pair of a head");
        let place =
            HeadColumns { stride: heads.width(), first: 0, heads: heads.queries + heads.keys };
        let out = self.like(qkv);
        self.push(Rotate { rope: Arc::clone(rope), place, x: qkv, out });
        out
    }

    /// Attention.
    pub fn attention(&mut self, heads: Heads, qkv: Value) -> Value {
        assert_eq!(self.width(qkv), heads.width(), "queries, keys and values");
        let out = self.value(self.space(qkv), heads.queries * heads.dim);
        self.push(Attention { heads, qkv, out });
        out
    }

    /// silu(gate) · value of [gate | value].
    pub fn swiglu(&mut self, x: Value) -> Value {
        assert!(
            self.width(x).is_multiple_of(2),
            "a gate and a value side by side, not {} numbers",
            self.width(x)
        );
        let out = self.value(self.space(x), self.width(x) / 2);
        self.push(SwiGlu { x, out });
        out
    }

    /// The rows of tokens that carry a target.
    pub fn target_rows(&mut self, x: Value) -> Value {
        let out = self.value(Space::Targets, self.width(x));
        self.push(TargetRows { x, out });
        out
    }

    /// The first token of each text.
    pub fn first_token(&mut self, x: Value) -> Value {
        let out = self.value(Space::Examples, self.width(x));
        self.push(FirstToken { x, out });
        out
    }

    /// The mean over each example's tokens or pixels.
    pub fn mean(&mut self, x: Value) -> Value {
        let out = self.value(Space::Examples, self.width(x));
        self.push(MeanRows { x, out });
        out
    }

    /// An image as one row.
    pub fn flatten(&mut self, x: Value) -> Value {
        let Space::Grid { height, width } = self.space(x) else {
            panic!("only an image can be flattened")
        };
        let out = self.value(Space::Examples, height * width * self.width(x));
        self.push(Reshape { x: Some(x), out });
        out
    }

    fn grid(&self, x: Value, window: &Window) -> (ImageShape, Space) {
        let Space::Grid { height, width } = self.space(x) else {
            panic!("only an image has windows")
        };
        let grid = ImageShape { height, width, channels: self.width(x) };
        let Some((height, width)) = window.output(&grid) else {
            panic!("a window of {:?} on {height}×{width} pixels", window.kernel)
        };
        (grid, Space::Grid { height, width })
    }

    /// A convolution with `name.weight` (out, in, height, width) and `name.bias`.
    pub fn conv(
        &mut self,
        name: &str,
        x: Value,
        channels: usize,
        window: Window,
        activation: Option<Activation>,
    ) -> Value {
        let (grid, space) = self.grid(x, &window);
        let patch = grid.channels * window.area();
        let patches = self.value(space, patch);
        self.push(Patches { window, grid, x, out: patches });
        let std = (2.0 / patch as f32).sqrt();
        let map = self.map(name, patch, channels, std);
        self.graph.specs[map.weight.0].shape =
            vec![channels, grid.channels, window.kernel[0], window.kernel[1]];
        self.linear(patches, &[map], activation)
    }

    /// Pooling.
    pub fn pool(&mut self, x: Value, pooling: Pooling, window: Window) -> Value {
        let (grid, space) = self.grid(x, &window);
        let out = self.value(space, grid.channels);
        self.push(Pool { pooling, window, grid, x, out });
        out
    }

    /// Marks the end of a stretch whose activations may be dropped and made again.
    pub fn cut(&mut self) {
        self.graph.cuts.push(self.graph.layers.len());
    }

    /// The graph that ends in these logits.
    pub fn finish(mut self, logits: Value) -> Graph {
        assert!(
            matches!(self.space(logits), Space::Targets | Space::Examples),
            "logits for targets or for examples"
        );
        self.graph.logits = logits;
        self.check_consumed();
        self.graph
    }

    /// A value that a layer changes in place is gone: nobody else may read it, its maker must not
    /// want it back, and no stretch may begin with it.
    fn check_consumed(&self) {
        let Graph { layers, cuts, .. } = &self.graph;
        let plan = Plan::new(&self.graph, &vec![true; self.graph.specs.len()]);
        // Counted once: a configuration may ask for thousands of layers.
        let mut readers = vec![0; self.graph.forms.len()];
        for layer in layers {
            let mut inputs: Vec<usize> = layer.inputs().iter().map(|value| value.0).collect();
            inputs.sort_unstable();
            inputs.dedup();
            inputs.into_iter().for_each(|value| readers[value] += 1);
        }
        for (index, layer) in layers.iter().enumerate() {
            if let Some(value) = layer.consumes() {
                let alone =
                    readers[value.0] == 1 && !plan.saved[value.0] && value != self.graph.logits;
                assert!(alone, "what is turned in place is read elsewhere too");
                let cut = cuts.iter().any(|&cut| plan.maker[value.0] < cut && cut <= index);
                assert!(!cut, "what is turned in place is made before a cut");
            }
        }
    }
}
