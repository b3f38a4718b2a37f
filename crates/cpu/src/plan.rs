//! The backward plan: which values are retained and which gradients are computed.

use crate::layer::{Layer, layer};
use crate::rule::GradientForm;
use model::op::Order;
use model::{Error, Graph, Param, Space, Value};

/// Values to retain and gradients to compute, for a choice of trained parameters.
#[derive(Debug)]
pub(crate) struct BackwardPlan {
    /// The trained parameters, in order.
    pub(crate) trained: Vec<Param>,
    /// Index of each parameter in `trained`.
    pub(crate) trained_index: Vec<Option<usize>>,
    /// Whether the gradient with respect to each value is computed.
    pub(crate) requires_gradient: Vec<bool>,
    /// Whether the backward pass reads each value.
    pub(crate) saved: Vec<bool>,
    /// Whether norms and sums of parameters need each value.
    pub(crate) retained_value: Vec<bool>,
    /// Whether norms and sums of parameters need the gradient with respect to each value.
    pub(crate) retained_gradient: Vec<bool>,
    /// The layer that computes each value.
    pub(crate) producer: Vec<usize>,
    /// The last layer that reads each value.
    pub(crate) last_reader: Vec<usize>,
    /// Gradient forms of all uses of each trained parameter.
    pub(crate) gradient_forms: Vec<Vec<GradientForm>>,
    /// The first layer that uses each trained parameter.
    pub(crate) first_use: Vec<usize>,
    /// The first layer of which the backward pass is run.
    pub(crate) first_layer: usize,
}

impl BackwardPlan {
    /// Computes the plan.
    ///
    /// # Errors
    /// If the graph is invalid, or the logits do not depend on a trained parameter.
    pub(crate) fn new(graph: &Graph, trainable: &[bool]) -> Result<Self, Error> {
        let layers = layers(graph)?;
        let trained: Vec<Param> =
            graph.param_ids().filter(|param| trainable[param.index()]).collect();
        let mut trained_index = vec![None; graph.params().len()];
        trained.iter().enumerate().for_each(|(k, param)| trained_index[param.index()] = Some(k));
        let count = graph.values().len();
        let mut plan = Self {
            gradient_forms: vec![Vec::new(); trained.len()],
            first_use: vec![graph.ops().len(); trained.len()],
            trained,
            trained_index,
            requires_gradient: vec![false; count],
            saved: vec![false; count],
            retained_value: vec![false; count],
            retained_gradient: vec![false; count],
            producer: vec![0; count],
            last_reader: vec![0; count],
            first_layer: graph.ops().len(),
        };
        for (index, layer) in layers.iter().enumerate() {
            let requires_gradient =
                layer.inputs().iter().any(|v| plan.requires_gradient[v.index()])
                    || layer.params().iter().any(|p| trainable[p.index()]);
            for value in layer.outputs() {
                plan.requires_gradient[value.index()] = requires_gradient;
                plan.last_reader[value.index()] = index;
                plan.producer[value.index()] = index;
            }
            layer.inputs().iter().for_each(|value| plan.last_reader[value.index()] = index);
            if requires_gradient {
                plan.first_layer = plan.first_layer.min(index);
            }
        }
        plan.last_reader[graph.logits().index()] = graph.ops().len();
        for (index, layer) in layers.iter().enumerate() {
            if layer.outputs().iter().any(|v| plan.requires_gradient[v.index()]) {
                for value in layer.saved_values() {
                    plan.saved[value.index()] = true;
                }
            }
            let forms = layer.gradient_forms();
            if let Some(param) = layer.params().into_iter().find(|&param| {
                plan.trains(param) && !forms.iter().any(|(known, _)| *known == param)
            }) {
                return Err(Error::Graph(format!(
                    "{}: trained, but its layer has no gradient form for it",
                    graph.param(param).name
                )));
            }
            for (param, form) in forms {
                check_form(graph, param, form)?;
                if let Some(k) = plan.trained_index[param.index()] {
                    let (value, gradient) = form.reads();
                    value.into_iter().for_each(|v| {
                        (plan.saved[v.index()], plan.retained_value[v.index()]) = (true, true)
                    });
                    gradient.into_iter().for_each(|v| plan.retained_gradient[v.index()] = true);
                    plan.gradient_forms[k].push(form);
                    plan.first_use[k] = plan.first_use[k].min(index);
                }
            }
        }
        plan.check_mixed_forms(graph)?;
        plan.check_overwritten(graph, &layers)?;
        match plan.disconnected_param(graph, &layers) {
            None => Ok(plan),
            Some(param) => Err(Error::Graph(format!(
                "{}: trained, but the logits do not depend on it",
                graph.param(param).name
            ))),
        }
    }

    /// Refuses a trained parameter with the form of a vector in one use and of a matrix in another.
    ///
    /// The norm of such a sum is not implemented.
    fn check_mixed_forms(&self, graph: &Graph) -> Result<(), Error> {
        let is_vector = |form: &GradientForm| *form == GradientForm::Vector;
        let mixed =
            |forms: &Vec<GradientForm>| forms.iter().any(is_vector) && !forms.iter().all(is_vector);
        match self.gradient_forms.iter().position(mixed) {
            None => Ok(()),
            Some(k) => Err(Error::Graph(format!(
                "{}: expected the same gradient form in all uses, got a vector and another form",
                graph.param(self.trained[k]).name
            ))),
        }
    }

    /// Refuses a graph in which an overwritten value is needed elsewhere.
    ///
    /// It must not be read by another layer or by a backward pass, and must not be an input of a
    /// segment.
    fn check_overwritten(&self, graph: &Graph, layers: &[&dyn Layer]) -> Result<(), Error> {
        // Number of layers that read each value. Counted once, because there can be thousands of
        // layers.
        let mut readers = vec![0; graph.values().len()];
        // Values that the backward pass reads if all parameters are trained.
        let mut needed = vec![false; graph.values().len()];
        for layer in layers {
            let read = |(_, form): (Param, GradientForm)| form.reads().0;
            let forms = layer.gradient_forms().into_iter().filter_map(read);
            forms.chain(layer.saved_values()).for_each(|value| needed[value.index()] = true);
            let mut inputs: Vec<usize> = layer.inputs().iter().map(|value| value.index()).collect();
            inputs.sort_unstable();
            inputs.dedup();
            inputs.into_iter().for_each(|value| readers[value] += 1);
        }
        for (index, layer) in layers.iter().enumerate() {
            let Some(value) = layer.overwrites() else { continue };
            let (i, producer) = (value.index(), self.producer[value.index()]);
            if readers[i] != 1 || needed[i] || value == graph.logits() {
                return Err(Error::Graph(
                    "an overwritten value is also read by another layer".into(),
                ));
            }
            if graph.segments().iter().any(|&start| producer < start && start <= index) {
                return Err(Error::Graph(
                    "an overwritten value is computed in an earlier segment".into(),
                ));
            }
        }
        Ok(())
    }

    /// Returns a trained parameter on which the logits do not depend, if there is one.
    ///
    /// Its noise would be charged, but it would never get a gradient.
    fn disconnected_param(&self, graph: &Graph, layers: &[&dyn Layer]) -> Option<Param> {
        let mut reaches = vec![false; graph.values().len()];
        reaches[graph.logits().index()] = true;
        let mut connected = vec![false; graph.params().len()];
        for layer in layers.iter().rev() {
            if layer.outputs().iter().any(|value| reaches[value.index()]) {
                layer
                    .inputs()
                    .iter()
                    .chain(&layer.outputs())
                    .for_each(|value| reaches[value.index()] = true);
                layer
                    .gradient_forms()
                    .iter()
                    .for_each(|(param, _)| connected[param.index()] = true);
            }
        }
        self.trained.iter().copied().find(|param| !connected[param.index()])
    }

    /// Returns whether a parameter is trained.
    pub(crate) fn trains(&self, param: Param) -> bool {
        self.trained_index[param.index()].is_some()
    }

    /// Returns whether the gradient with respect to a value is computed.
    pub(crate) fn requires_gradient(&self, value: Value) -> bool {
        self.requires_gradient[value.index()]
    }
}

/// Refuses a gradient form whose values do not fit each other or the parameter.
///
/// Both factors of an outer product must have rows of the same space. Otherwise rows of one example
/// would be multiplied by rows of another.
fn check_form(graph: &Graph, param: Param, form: GradientForm) -> Result<(), Error> {
    let spec = graph.param(param);
    let shape: (usize, usize) =
        (spec.shape.first().copied().unwrap_or(1), spec.shape.iter().skip(1).product());
    let fits = match form {
        GradientForm::Vector => true,
        GradientForm::Lookup { gradient, .. } => {
            let gradient = graph.shape(gradient);
            gradient.space == Space::Tokens && gradient.width == shape.1
        }
        GradientForm::Outer { x, gradient: (gradient, first, width), order } => {
            let (x, gradient) = (graph.shape(x), graph.shape(gradient));
            let product = if order == Order::OutIn { (width, x.width) } else { (x.width, width) };
            x.space == gradient.space
                && first.saturating_add(width) <= gradient.width
                && product == shape
        }
    };
    if fits {
        Ok(())
    } else {
        Err(Error::Graph(format!(
            "{}: the gradient form does not fit the shape {:?} or the rows of its values",
            spec.name, spec.shape
        )))
    }
}

/// Returns the layers of a graph, in order.
fn layers(graph: &Graph) -> Result<Vec<&dyn Layer>, Error> {
    graph.ops().iter().map(layer).collect()
}
