//! Builds graphs, operation by operation.
//!
//! ```
//! use model::activation::Activation;
//! use model::{Builder, Linear};
//!
//! // Four features in, three classes out.
//! let mut build = Builder::features(4);
//! let x = build.input();
//! let hidden = build.linear(x, Linear::new("hidden", 4, 16).activation(Activation::Relu));
//! let logits = build.linear(hidden, Linear::new("head", 16, 3));
//! let graph = build.finish(logits);
//! assert_eq!(graph.params().len(), 4);
//! ```

use crate::graph::{Graph, Init, InputShape, Param, ParamSpec, Space, Value, ValueShape};
use crate::lora::LowRankPair;
use crate::op::{
    AddOp, AttentionOp, EmbeddingOp, FirstTokenOp, GroupNormOp, Index, LinearOp, LinearPart,
    LowRank, MeanRowsOp, NormOp, Op, Operation, Order, PatchesOp, PoolOp, ReshapeOp, RopeOp,
    SwiGluOp, TargetRowsOp,
};
use std::sync::Arc;
use tensor::activation::Activation;
use tensor::attention::Heads;
use tensor::norm::Norm;
use tensor::patches::{ImageShape, Window};
use tensor::pooling::Pool as Pooling;
use tensor::rope::{HeadColumns, Rope};

/// Builds a [`Graph`].
///
/// ```
/// use model::{Builder, InputShape, Linear};
///
/// let mut build = Builder::features(4);
/// let x = build.input();
/// let logits = build.linear(x, Linear::new("head", 4, 3));
/// let graph = build.finish(logits);
/// assert_eq!(graph.input(), InputShape::Features(4));
/// ```
#[derive(Debug)]
pub struct Builder {
    graph: Graph,
    lora: Option<Lora>,
}

/// Low-rank adapters of linear maps (Hu et al. 2022): W + (alpha/rank) · A Bᵀ.
///
/// ```
/// use model::{Checkpoint, Lora, Preset, hf};
///
/// let lora = Lora { rank: 4, alpha: 8.0, on: vec!["attn".into()] };
/// let config = hf::Config::new(Preset::Tiny.architecture());
/// let adapted = Checkpoint::new(config, Some(lora), 0)?;
/// assert!(adapted.graph.params().iter().any(|param| param.name.contains(".lora_")));
/// # Ok::<(), model::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// r
    pub rank: usize,
    /// The scale is alpha/rank.
    pub alpha: f32,
    /// Which maps: those whose name contains one of these. Empty: all.
    pub on: Vec<String>,
}

/// A linear map y = x Wᵀ + b, with parameters `name.weight` and `name.bias`.
///
/// ```
/// use model::activation::Activation;
/// use model::{Builder, Linear};
///
/// let mut build = Builder::features(4);
/// let x = build.input();
/// let hidden = Linear::new("hidden", 4, 8).bias(false).activation(Activation::Tanh);
/// let logits = build.linear(x, hidden);
/// assert_eq!(build.finish(logits).params()[0].shape, [8, 4]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    name: String,
    input: usize,
    output: usize,
    init_std: f32,
    bias: bool,
    order: Order,
    activation: Option<Activation>,
}

impl Linear {
    /// A map of `input` columns to `output` columns, with normal weights of standard deviation
    /// 1/√input, a bias that starts at zero, and no activation.
    pub fn new(name: impl Into<String>, input: usize, output: usize) -> Self {
        Self {
            name: name.into(),
            input,
            output,
            init_std: (1.0 / input as f32).sqrt(),
            bias: true,
            order: Order::OutIn,
            activation: None,
        }
    }

    /// Sets the standard deviation of the initial weights.
    #[must_use]
    pub fn init_std(mut self, std: f32) -> Self {
        self.init_std = std;
        self
    }

    /// Sets whether it has a bias.
    #[must_use]
    pub fn bias(mut self, bias: bool) -> Self {
        self.bias = bias;
        self
    }

    /// Sets how the weight is stored.
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Sets the activation of the result.
    #[must_use]
    pub fn activation(mut self, activation: Activation) -> Self {
        self.activation = Some(activation);
        self
    }
}

/// The parameters of a linear map, which may be applied in several places.
#[derive(Clone, Copy, Debug)]
pub struct LinearLayer {
    weight: Param,
    bias: Option<Param>,
    order: Order,
    input: usize,
    width: usize,
    adapter: Option<(Param, Param, usize, f32)>,
    activation: Option<Activation>,
}

/// Initial scale of low-rank factors: orthonormal columns times this. Both factors are away from
/// zero, so the product has full rank.
const ADAPTER_SCALE: f32 = 0.02;

impl Builder {
    fn new(input: InputShape) -> Self {
        let graph = Graph {
            params: Vec::new(),
            values: Vec::new(),
            ops: Vec::new(),
            segments: Vec::new(),
            input,
            logits: Value(0),
            pairs: Vec::new(),
            lora: None,
        };
        Self { graph, lora: None }
    }

    /// Starts a model that takes texts of at most `longest` tokens below `vocab`.
    pub fn tokens(vocab: usize, longest: usize) -> Self {
        Self::new(InputShape::Tokens { vocab, longest })
    }

    /// Starts a model that takes this many features per example.
    pub fn features(count: usize) -> Self {
        Self::new(InputShape::Features(count))
    }

    /// Gives every linear map that is declared from here on a low-rank adapter, if `lora` selects
    /// it.
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
        self.graph.params.push(ParamSpec { name: name.into(), shape: shape.into(), init });
        Param(self.graph.params.len() - 1)
    }

    /// Declares the parameters of a linear map.
    pub fn linear_layer(&mut self, layer: Linear) -> LinearLayer {
        let Linear { name, input, output, init_std, bias, order, activation } = layer;
        let shape = if order == Order::OutIn { [output, input] } else { [input, output] };
        let init = Init::Normal { std: init_std };
        let weight = self.param(format!("{name}.weight"), shape, init);
        let bias = bias.then(|| self.param(format!("{name}.bias"), [output], Init::Zeros));
        let selected = |lora: &Lora| {
            lora.on.is_empty() || lora.on.iter().any(|part| name.contains(part.as_str()))
        };
        let adapter = self.lora.clone().filter(selected).map(|lora| {
            let rank = lora.rank.min(input).min(output);
            let init = Init::Orthonormal { scale: ADAPTER_SCALE };
            let left = self.param(format!("{name}.lora_left"), [output, rank], init);
            let right = self.param(format!("{name}.lora_right"), [input, rank], init);
            let scale = lora.alpha / rank as f32;
            self.graph.pairs.push(LowRankPair { weight, left, right, scale, order });
            (left, right, rank, scale)
        });
        LinearLayer { weight, bias, order, input, width: output, adapter, activation }
    }

    /// The map x → x Tᵀ by a table T that is used elsewhere too (tied weights).
    pub fn tied_layer(&self, table: Param) -> LinearLayer {
        let (rows, input) = self.table(table);
        LinearLayer {
            weight: table,
            bias: None,
            order: Order::OutIn,
            input,
            width: rows,
            adapter: None,
            activation: None,
        }
    }

    /// Declares a linear map and applies it.
    pub fn linear(&mut self, x: Value, layer: Linear) -> Value {
        let layer = self.linear_layer(layer);
        self.apply_linear(x, &[layer])
    }

    fn value(&mut self, space: Space, width: usize) -> Value {
        self.graph.values.push(ValueShape { space, width });
        Value(self.graph.values.len() - 1)
    }

    fn like(&mut self, value: Value) -> Value {
        let form = self.graph.values[value.0];
        self.value(form.space, form.width)
    }

    fn push(&mut self, op: Op) {
        self.graph.ops.push(op);
    }

    fn width(&self, value: Value) -> usize {
        self.graph.values[value.0].width
    }

    fn space(&self, value: Value) -> Space {
        self.graph.values[value.0].space
    }

    /// Rows and columns.
    fn table(&self, table: Param) -> (usize, usize) {
        let ParamSpec { name, shape, .. } = &self.graph.params[table.0];
        let &[rows, cols] = shape.as_slice() else {
            panic!("{name}: expected a table, got shape {shape:?}")
        };
        (rows, cols)
    }

    fn embedding(&mut self, table: Param, index: Index) -> Value {
        let InputShape::Tokens { vocab, longest } = self.graph.input else {
            panic!("a model of features has no tokens")
        };
        let (rows, width) = self.table(table);
        let needed = match index {
            Index::Token => vocab,
            Index::Position => longest,
            Index::First => 1,
        };
        assert!(
            rows >= needed,
            "{}: expected at least {needed} rows, got {rows}",
            self.graph.params[table.0].name
        );
        let out = self.value(Space::Tokens, width);
        self.push(Op::Embedding(EmbeddingOp { table, index, out }));
        out
    }

    /// The table's row for each token.
    pub fn embed_tokens(&mut self, table: Param) -> Value {
        self.embedding(table, Index::Token)
    }

    /// The table's row for each token's position in its text.
    pub fn embed_positions(&mut self, table: Param) -> Value {
        self.embedding(table, Index::Position)
    }

    /// The table's first row, for each token: texts of one segment.
    pub fn embed_segment(&mut self, table: Param) -> Value {
        self.embedding(table, Index::First)
    }

    /// The features of each example.
    pub fn input(&mut self) -> Value {
        let InputShape::Features(count) = self.graph.input else {
            panic!("a model of tokens has no features")
        };
        let out = self.value(Space::Examples, count);
        self.push(Op::Reshape(ReshapeOp { x: None, out }));
        out
    }

    /// The features of each example as an image, channels last.
    pub fn image(&mut self, grid: ImageShape) -> Value {
        assert_eq!(self.graph.input, InputShape::Features(grid.len()), "pixels of the image");
        let out = self.value(Space::Grid { height: grid.height, width: grid.width }, grid.channels);
        self.push(Op::Reshape(ReshapeOp { x: None, out }));
        out
    }

    /// a + b
    pub fn add(&mut self, a: Value, b: Value) -> Value {
        assert_eq!(self.graph.values[a.0], self.graph.values[b.0], "shapes of the summands");
        let out = self.like(a);
        self.push(Op::Add(AddOp { a, b, out }));
        out
    }

    /// Applies linear maps to x; the results lie side by side. Only a single map may have an
    /// activation.
    ///
    /// # Panics
    /// If a map does not take as many columns as x has, or one of several has an activation.
    pub fn apply_linear(&mut self, x: Value, layers: &[LinearLayer]) -> Value {
        let activation = layers.iter().find_map(|layer| layer.activation);
        assert!(activation.is_none() || layers.len() == 1, "only a single map has an activation");
        for layer in layers {
            let name = &self.graph.params[layer.weight.0].name;
            assert_eq!(layer.input, self.width(x), "{name}: input width");
        }
        let space = self.space(x);
        let out = self.value(space, layers.iter().map(|layer| layer.width).sum());
        let mut first = 0;
        let mut parts = Vec::new();
        for layer in layers {
            let low_rank = layer.adapter.map(|(left, right, rank, scale)| LowRank {
                left,
                right,
                rank,
                scale,
                inner: self.value(space, rank),
            });
            parts.push(LinearPart {
                weight: layer.weight,
                order: layer.order,
                bias: layer.bias,
                low_rank,
                first,
                width: layer.width,
            });
            first += layer.width;
        }
        self.push(Op::Linear(LinearOp { x, parts, activation, out }));
        out
    }

    /// Layer norm with `name.weight` and `name.bias`.
    pub fn layer_norm(&mut self, name: &str, x: Value, epsilon: f32) -> Value {
        let width = self.width(x);
        let gain = self.param(format!("{name}.weight"), [width], Init::Ones);
        let bias = Some(self.param(format!("{name}.bias"), [width], Init::Zeros));
        let out = self.like(x);
        self.push(Op::Norm(NormOp { norm: Norm::Layer, epsilon, x, gain, bias, out }));
        out
    }

    /// Root-mean-square norm with `name.weight`.
    pub fn rms_norm(&mut self, name: &str, x: Value, epsilon: f32) -> Value {
        let width = self.width(x);
        let gain = self.param(format!("{name}.weight"), [width], Init::Ones);
        let out = self.like(x);
        self.push(Op::Norm(NormOp { norm: Norm::Rms, epsilon, x, gain, bias: None, out }));
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
        self.push(Op::GroupNorm(GroupNormOp {
            groups,
            epsilon,
            pixels: height * width,
            x,
            gain,
            bias,
            out,
        }));
        out
    }

    /// Turns queries and keys (side by side with the values) by their positions, in place: nothing
    /// else may read `qkv`.
    pub fn rope(&mut self, rope: &Arc<Rope>, heads: Heads, qkv: Value) -> Value {
        assert_eq!(self.width(qkv), heads.width(), "queries, keys and values");
        assert_eq!(rope.dim(), heads.dim, "an angle for each pair of a head");
        let place =
            HeadColumns { stride: heads.width(), first: 0, heads: heads.queries + heads.keys };
        let out = self.like(qkv);
        self.push(Op::Rope(RopeOp { rope: Arc::clone(rope), place, x: qkv, out }));
        out
    }

    /// Attention.
    pub fn attention(&mut self, heads: Heads, qkv: Value) -> Value {
        assert_eq!(self.width(qkv), heads.width(), "queries, keys and values");
        let out = self.value(self.space(qkv), heads.queries * heads.dim);
        self.push(Op::Attention(AttentionOp { heads, qkv, out }));
        out
    }

    /// silu(gate) · value of [gate | value].
    pub fn swiglu(&mut self, x: Value) -> Value {
        assert!(
            self.width(x).is_multiple_of(2),
            "expected a gate and a value side by side, got {} columns",
            self.width(x)
        );
        let out = self.value(self.space(x), self.width(x) / 2);
        self.push(Op::SwiGlu(SwiGluOp { x, out }));
        out
    }

    /// The rows of tokens that carry a target.
    pub fn target_rows(&mut self, x: Value) -> Value {
        let out = self.value(Space::Targets, self.width(x));
        self.push(Op::TargetRows(TargetRowsOp { x, out }));
        out
    }

    /// The first token of each text.
    pub fn first_token(&mut self, x: Value) -> Value {
        let out = self.value(Space::Examples, self.width(x));
        self.push(Op::FirstToken(FirstTokenOp { x, out }));
        out
    }

    /// The mean over each example's tokens or pixels.
    pub fn mean(&mut self, x: Value) -> Value {
        let out = self.value(Space::Examples, self.width(x));
        self.push(Op::MeanRows(MeanRowsOp { x, out }));
        out
    }

    /// An image as one row.
    pub fn flatten(&mut self, x: Value) -> Value {
        let Space::Grid { height, width } = self.space(x) else {
            panic!("only an image can be flattened")
        };
        let out = self.value(Space::Examples, height * width * self.width(x));
        self.push(Op::Reshape(ReshapeOp { x: Some(x), out }));
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
        self.push(Op::Patches(PatchesOp { window, grid, x, out: patches }));
        let mut layer = Linear::new(name, patch, channels).init_std((2.0 / patch as f32).sqrt());
        layer.activation = activation;
        let layer = self.linear_layer(layer);
        self.graph.params[layer.weight.0].shape =
            vec![channels, grid.channels, window.kernel[0], window.kernel[1]];
        self.apply_linear(patches, &[layer])
    }

    /// Pooling.
    pub fn pool(&mut self, x: Value, pooling: Pooling, window: Window) -> Value {
        let (grid, space) = self.grid(x, &window);
        let out = self.value(space, grid.channels);
        self.push(Op::Pool(PoolOp { pooling, window, grid, x, out }));
        out
    }

    /// Begins a segment of operations whose activations may be recomputed together.
    pub fn segment(&mut self) {
        self.graph.segments.push(self.graph.ops.len());
    }

    /// The graph that ends in these logits.
    pub fn finish(mut self, logits: Value) -> Graph {
        assert!(
            matches!(self.space(logits), Space::Targets | Space::Examples),
            "logits for targets or for examples"
        );
        self.graph.logits = logits;
        self.graph
    }

    /// A new value, for the result of a custom operation.
    pub fn custom_value(&mut self, space: Space, width: usize) -> Value {
        self.value(space, width)
    }

    /// Adds a custom operation, such as a layer of the CPU engine defined outside this workspace.
    pub fn custom(&mut self, op: Arc<dyn Operation>) {
        self.push(Op::Custom(op));
    }

    /// Shape of a value.
    pub fn shape(&self, value: Value) -> ValueShape {
        self.graph.values[value.0]
    }
}
