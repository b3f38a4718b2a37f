//! A builder of graphs, operation by operation.
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

use crate::graph::{Graph, Init, InputShape, Loss, Param, ParamSpec, Space, Value, ValueShape};
use crate::lora::Lora;
use crate::lora::LowRankAdapter;
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

/// Builds a [`Graph`], operation by operation.
///
/// Methods panic if an argument does not fit: a graph with mismatched shapes is a programming
/// error.
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

/// Options of a linear layer y = x Wᵀ + b with parameters `name.weight` and `name.bias`.
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
    /// Describes a layer from `input` columns to `output` columns.
    ///
    /// By default, weights are normal with standard deviation 1/√input, the bias is zero, and there
    /// is no activation.
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

    /// Sets whether the layer has a bias.
    #[must_use]
    pub fn bias(mut self, bias: bool) -> Self {
        self.bias = bias;
        self
    }

    /// Sets the storage order of the weight.
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Sets the activation function of the result.
    #[must_use]
    pub fn activation(mut self, activation: Activation) -> Self {
        self.activation = Some(activation);
        self
    }
}

/// The parameters of a linear layer, which can be applied several times.
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

/// Initial scale of the orthonormal columns of low-rank factors.
///
/// Both factors start away from zero, so their product has full rank.
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
            loss: Loss::CrossEntropy,
            adapters: Vec::new(),
            lora: None,
        };
        Self { graph, lora: None }
    }

    /// Starts a model of token sequences of length at most `max_length`, with ids below `vocab`.
    pub fn tokens(vocab: usize, max_length: usize) -> Self {
        Self::new(InputShape::Tokens { vocab, max_length })
    }

    /// Starts a model of feature vectors of length `count`.
    pub fn features(count: usize) -> Self {
        Self::new(InputShape::Features(count))
    }

    /// Adds a low-rank adapter to every linear layer declared from now on that `lora` selects.
    pub fn with_lora(mut self, lora: Option<Lora>) -> Self {
        if lora.is_some() {
            self.graph.lora.clone_from(&lora);
        }
        self.lora = lora;
        self
    }

    /// Declares a parameter.
    pub fn param(
        &mut self,
        name: impl Into<String>,
        shape: impl Into<Vec<usize>>,
        init: Init,
    ) -> Param {
        self.graph.params.push(ParamSpec { name: name.into(), shape: shape.into(), init });
        Param(self.graph.params.len() - 1)
    }

    /// Declares the parameters of a linear layer.
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
            self.graph.adapters.push(LowRankAdapter { weight, left, right, scale, order });
            (left, right, rank, scale)
        });
        LinearLayer { weight, bias, order, input, width: output, adapter, activation }
    }

    /// Returns the layer y = x Tᵀ of an embedding table T (tied weights).
    pub fn tied_layer(&self, table: Param) -> LinearLayer {
        let (rows, input) = self.table_shape(table);
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

    /// Declares a linear layer and applies it.
    pub fn linear(&mut self, x: Value, layer: Linear) -> Value {
        let layer = self.linear_layer(layer);
        self.apply_linear(x, &[layer])
    }

    fn value(&mut self, space: Space, width: usize) -> Value {
        self.graph.values.push(ValueShape { space, width });
        Value(self.graph.values.len() - 1)
    }

    fn value_like(&mut self, value: Value) -> Value {
        let shape = self.graph.values[value.0];
        self.value(shape.space, shape.width)
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

    /// Returns the rows and columns of a table.
    fn table_shape(&self, table: Param) -> (usize, usize) {
        let ParamSpec { name, shape, .. } = &self.graph.params[table.0];
        let &[rows, cols] = shape.as_slice() else {
            panic!("{name}: expected a matrix, got shape {shape:?}")
        };
        (rows, cols)
    }

    fn embedding(&mut self, table: Param, index: Index) -> Value {
        let InputShape::Tokens { vocab, max_length } = self.graph.input else {
            panic!("embedding: expected a model of tokens, got a model of features")
        };
        let (rows, width) = self.table_shape(table);
        let needed = match index {
            Index::Token => vocab,
            Index::Position => max_length,
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

    /// Looks up each token's id in an embedding table.
    pub fn embed_tokens(&mut self, table: Param) -> Value {
        self.embedding(table, Index::Token)
    }

    /// Looks up each token's position in an embedding table.
    pub fn embed_positions(&mut self, table: Param) -> Value {
        self.embedding(table, Index::Position)
    }

    /// Looks up the first row of a segment table for each token: all inputs have one segment.
    pub fn embed_segment(&mut self, table: Param) -> Value {
        self.embedding(table, Index::First)
    }

    /// Returns the features of each example, as one row.
    pub fn input(&mut self) -> Value {
        let InputShape::Features(count) = self.graph.input else {
            panic!("input: expected a model of features, got a model of tokens")
        };
        let out = self.value(Space::Parts, count);
        self.push(Op::Reshape(ReshapeOp { x: None, out }));
        out
    }

    /// Returns the features of each example as an image, channels last.
    pub fn image(&mut self, image: ImageShape) -> Value {
        assert_eq!(self.graph.input, InputShape::Features(image.len()), "image: size");
        let ImageShape { height, width, channels } = image;
        let out = self.value(Space::Grid { height, width }, channels);
        self.push(Op::Reshape(ReshapeOp { x: None, out }));
        out
    }

    /// Adds two values of the same shape.
    pub fn add(&mut self, a: Value, b: Value) -> Value {
        assert_eq!(self.graph.values[a.0], self.graph.values[b.0], "add: shapes of a and b");
        let out = self.value_like(a);
        self.push(Op::Add(AddOp { a, b, out }));
        out
    }

    /// Applies linear layers to x and concatenates the results.
    ///
    /// # Panics
    /// If a layer has another input width than x, or if there are several layers and one has an
    /// activation.
    pub fn apply_linear(&mut self, x: Value, layers: &[LinearLayer]) -> Value {
        let activation = layers.iter().find_map(|layer| layer.activation);
        assert!(
            activation.is_none() || layers.len() == 1,
            "several layers: expected no activation"
        );
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

    /// Applies layer normalization with parameters `name.weight` and `name.bias`.
    pub fn layer_norm(&mut self, name: &str, x: Value, epsilon: f32) -> Value {
        let width = self.width(x);
        let gain = self.param(format!("{name}.weight"), [width], Init::Ones);
        let bias = Some(self.param(format!("{name}.bias"), [width], Init::Zeros));
        let out = self.value_like(x);
        self.push(Op::Norm(NormOp { norm: Norm::Layer, epsilon, x, gain, bias, out }));
        out
    }

    /// Applies RMS normalization with parameter `name.weight`.
    pub fn rms_norm(&mut self, name: &str, x: Value, epsilon: f32) -> Value {
        let width = self.width(x);
        let gain = self.param(format!("{name}.weight"), [width], Init::Ones);
        let out = self.value_like(x);
        self.push(Op::Norm(NormOp { norm: Norm::Rms, epsilon, x, gain, bias: None, out }));
        out
    }

    /// Applies group normalization to an image, with parameters `name.weight` and `name.bias`.
    pub fn group_norm(&mut self, name: &str, x: Value, groups: usize, epsilon: f32) -> Value {
        let Space::Grid { height, width } = self.space(x) else {
            panic!("{name}: group norm: expected an image")
        };
        let channels = self.width(x);
        assert!(
            groups > 0 && channels.is_multiple_of(groups),
            "{name}: {channels} channels are not divisible into {groups} groups"
        );
        let gain = self.param(format!("{name}.weight"), [channels], Init::Ones);
        let bias = self.param(format!("{name}.bias"), [channels], Init::Zeros);
        let out = self.value_like(x);
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

    /// Applies rotary position embeddings to the queries and keys of `qkv`, in place.
    ///
    /// No other operation may read `qkv`.
    pub fn rope(&mut self, rope: &Arc<Rope>, heads: Heads, qkv: Value) -> Value {
        assert_eq!(self.width(qkv), heads.width(), "width of queries, keys and values");
        assert_eq!(rope.dim(), heads.dim, "rope: width of a head");
        let columns =
            HeadColumns { stride: heads.width(), first: 0, heads: heads.queries + heads.keys };
        let out = self.value_like(qkv);
        self.push(Op::Rope(RopeOp { rope: Arc::clone(rope), columns, x: qkv, out }));
        out
    }

    /// Applies multi-head self-attention to queries, keys and values.
    pub fn attention(&mut self, heads: Heads, qkv: Value) -> Value {
        assert_eq!(self.width(qkv), heads.width(), "width of queries, keys and values");
        let out = self.value(self.space(qkv), heads.queries * heads.dim);
        self.push(Op::Attention(AttentionOp { heads, qkv, out }));
        out
    }

    /// Applies SwiGLU: silu(gate) · value of the concatenation [gate | value].
    pub fn swiglu(&mut self, x: Value) -> Value {
        assert!(
            self.width(x).is_multiple_of(2),
            "swiglu: expected an even number of columns, got {}",
            self.width(x)
        );
        let out = self.value(self.space(x), self.width(x) / 2);
        self.push(Op::SwiGlu(SwiGluOp { x, out }));
        out
    }

    /// Selects the rows of tokens that have a target.
    pub fn target_rows(&mut self, x: Value) -> Value {
        let out = self.value(Space::Targets, self.width(x));
        self.push(Op::TargetRows(TargetRowsOp { x, out }));
        out
    }

    /// Selects the first token of each example.
    pub fn first_token(&mut self, x: Value) -> Value {
        let out = self.value(Space::Parts, self.width(x));
        self.push(Op::FirstToken(FirstTokenOp { x, out }));
        out
    }

    /// Averages the rows (tokens or pixels) of each example.
    pub fn mean(&mut self, x: Value) -> Value {
        let out = self.value(Space::Parts, self.width(x));
        self.push(Op::MeanRows(MeanRowsOp { x, out }));
        out
    }

    /// Flattens each image into one row.
    pub fn flatten(&mut self, x: Value) -> Value {
        let Space::Grid { height, width } = self.space(x) else {
            panic!("flatten: expected an image")
        };
        let out = self.value(Space::Parts, height * width * self.width(x));
        self.push(Op::Reshape(ReshapeOp { x: Some(x), out }));
        out
    }

    /// Returns the shape of an image and the space of its windows.
    fn windows(&self, x: Value, window: &Window) -> (ImageShape, Space) {
        let Space::Grid { height, width } = self.space(x) else {
            panic!("convolution or pooling: expected an image")
        };
        let image = ImageShape { height, width, channels: self.width(x) };
        let Some((height, width)) = window.output(&image) else {
            panic!("kernel {:?} does not fit an image of {height}×{width}", window.kernel)
        };
        (image, Space::Grid { height, width })
    }

    /// Applies a convolution with `name.weight` (out, in, height, width) and `name.bias`.
    pub fn conv(
        &mut self,
        name: &str,
        x: Value,
        channels: usize,
        window: Window,
        activation: Option<Activation>,
    ) -> Value {
        let (image, space) = self.windows(x, &window);
        let patch = image.channels * window.area();
        let patches = self.value(space, patch);
        self.push(Op::Patches(PatchesOp { window, image, x, out: patches }));
        let mut layer = Linear::new(name, patch, channels).init_std((2.0 / patch as f32).sqrt());
        layer.activation = activation;
        let layer = self.linear_layer(layer);
        self.graph.params[layer.weight.0].shape =
            vec![channels, image.channels, window.kernel[0], window.kernel[1]];
        self.apply_linear(patches, &[layer])
    }

    /// Pools over the windows of an image.
    pub fn pool(&mut self, x: Value, pooling: Pooling, window: Window) -> Value {
        let (image, space) = self.windows(x, &window);
        let out = self.value(space, image.channels);
        self.push(Op::Pool(PoolOp { pooling, window, image, x, out }));
        out
    }

    /// Starts a new segment: operations whose activations can be recomputed together.
    pub fn segment(&mut self) {
        self.graph.segments.push(self.graph.ops.len());
    }

    /// Returns the graph with these logits as its output.
    pub fn finish(mut self, logits: Value) -> Graph {
        assert!(
            matches!(self.space(logits), Space::Targets | Space::Parts),
            "logits: expected one row for each target or for each example"
        );
        self.graph.logits = logits;
        self.graph
    }

    /// Declares a value for the result of a custom operation.
    pub fn custom_value(&mut self, space: Space, width: usize) -> Value {
        self.value(space, width)
    }

    /// Adds a custom operation, such as a layer of the CPU engine defined outside this workspace.
    pub fn custom(&mut self, op: Arc<dyn Operation>) {
        self.push(Op::Custom(op));
    }

    /// Returns the shape of a value.
    pub fn shape(&self, value: Value) -> ValueShape {
        self.graph.values[value.0]
    }
}
