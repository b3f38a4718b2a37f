//! What the passes over a graph must retain and compute, given which parameters are trained.

use crate::layer::{Layer, layer};
use crate::rule::GradientForm;
use model::op::Order;
use model::{Error, Graph, Param, Space, Value};

/// The consequences of a choice of trainable parameters, computed once.
#[derive(Debug)]
pub(crate) struct BackwardPlan {
    /// The trainable parameters, in order.
    pub(crate) trained: Vec<Param>,
    /// The place of each parameter among the trained ones.
    pub(crate) place: Vec<Option<usize>>,
    /// Values through which a gradient flows: those above a trained parameter.
    pub(crate) flows: Vec<bool>,
    /// Values that a backward pass reads.
    pub(crate) saved: Vec<bool>,
    /// Values, and gradients of values, of which the norms and sums of parameters are made.
    pub(crate) kept_value: Vec<bool>,
    pub(crate) kept_gradient: Vec<bool>,
    /// The layer that makes each value.
    pub(crate) maker: Vec<usize>,
    /// The last layer that reads each value.
    pub(crate) last_reader: Vec<usize>,
    /// How each trained parameter enters, by place.
    pub(crate) gradient_forms: Vec<Vec<GradientForm>>,
    /// The lowest layer in which each trained parameter enters, by place.
    pub(crate) first_use: Vec<usize>,
    /// The lowest layer that takes part in the backward pass.
    pub(crate) lowest: usize,
}

impl BackwardPlan {
    pub(crate) fn new(graph: &Graph, trainable: &[bool]) -> Result<Self, Error> {
        let layers = layers(graph)?;
        let trained: Vec<Param> =
            graph.param_ids().filter(|param| trainable[param.index()]).collect();
        let mut place = vec![None; graph.params().len()];
        trained.iter().enumerate().for_each(|(k, param)| place[param.index()] = Some(k));
        let count = graph.values().len();
        let mut plan = Self {
            gradient_forms: vec![Vec::new(); trained.len()],
            first_use: vec![graph.ops().len(); trained.len()],
            trained,
            place,
            flows: vec![false; count],
            saved: vec![false; count],
            kept_value: vec![false; count],
            kept_gradient: vec![false; count],
            maker: vec![0; count],
            last_reader: vec![0; count],
            lowest: graph.ops().len(),
        };
        for (index, layer) in layers.iter().enumerate() {
            let flows = layer.inputs().iter().any(|v| plan.flows[v.index()])
                || layer.params().iter().any(|p| trainable[p.index()]);
            for value in layer.outputs() {
                plan.flows[value.index()] = flows;
                plan.last_reader[value.index()] = index;
                plan.maker[value.index()] = index;
            }
            layer.inputs().iter().for_each(|value| plan.last_reader[value.index()] = index);
            if flows {
                plan.lowest = plan.lowest.min(index);
            }
        }
        plan.last_reader[graph.logits().index()] = graph.ops().len();
        for (index, layer) in layers.iter().enumerate() {
            if layer.outputs().iter().any(|v| plan.flows[v.index()]) {
                for value in layer.saved_values() {
                    plan.saved[value.index()] = true;
                }
            }
            let forms = layer.gradient_forms();
            if let Some(param) = layer.params().into_iter().find(|&param| {
                plan.trains(param) && !forms.iter().any(|(formed, _)| *formed == param)
            }) {
                return Err(Error::Graph(format!(
                    "{}: trained, but its layer does not say how its gradient is formed",
                    graph.param(param).name
                )));
            }
            for (param, entry) in forms {
                check_form(graph, param, entry)?;
                if let Some(k) = plan.place[param.index()] {
                    let (value, gradient) = entry.reads();
                    value.into_iter().for_each(|v| {
                        (plan.saved[v.index()], plan.kept_value[v.index()]) = (true, true)
                    });
                    gradient.into_iter().for_each(|v| plan.kept_gradient[v.index()] = true);
                    plan.gradient_forms[k].push(entry);
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

    /// Refuses a trained parameter that is a vector in one place and a matrix in another: their sum
    /// has no norm.
    fn check_mixed_forms(&self, graph: &Graph) -> Result<(), Error> {
        let is_vector = |form: &GradientForm| *form == GradientForm::Vector;
        let mixed =
            |forms: &Vec<GradientForm>| forms.iter().any(is_vector) && !forms.iter().all(is_vector);
        match self.gradient_forms.iter().position(mixed) {
            None => Ok(()),
            Some(k) => Err(Error::Graph(format!(
                "{}: its gradient is a vector in one place and not in another",
                graph.param(self.trained[k]).name
            ))),
        }
    }

    /// Refuses a graph in which a value that a layer overwrites is read elsewhere, is needed by the
    /// backward pass, or begins a segment.
    fn check_overwritten(&self, graph: &Graph, layers: &[&dyn Layer]) -> Result<(), Error> {
        // Counted once: a configuration may ask for thousands of layers.
        let mut readers = vec![0; graph.values().len()];
        // Whichever parameters are trained.
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
            let (i, maker) = (value.index(), self.maker[value.index()]);
            if readers[i] != 1 || needed[i] || value == graph.logits() {
                return Err(Error::Graph("a value that is overwritten is read elsewhere".into()));
            }
            if graph.segments().iter().any(|&start| maker < start && start <= index) {
                return Err(Error::Graph(
                    "a value that is overwritten is made in an earlier segment".into(),
                ));
            }
        }
        Ok(())
    }

    /// A trained parameter on which the logits do not depend: it would be charged for and never
    /// move.
    fn disconnected_param(&self, graph: &Graph, layers: &[&dyn Layer]) -> Option<Param> {
        let mut reaches = vec![false; graph.values().len()];
        reaches[graph.logits().index()] = true;
        let mut alive = vec![false; graph.params().len()];
        for layer in layers.iter().rev() {
            if layer.outputs().iter().any(|value| reaches[value.index()]) {
                layer
                    .inputs()
                    .iter()
                    .chain(&layer.outputs())
                    .for_each(|value| reaches[value.index()] = true);
                layer.gradient_forms().iter().for_each(|(param, _)| alive[param.index()] = true);
            }
        }
        self.trained.iter().copied().find(|param| !alive[param.index()])
    }

    pub(crate) fn trains(&self, param: Param) -> bool {
        self.place[param.index()].is_some()
    }

    pub(crate) fn flows(&self, value: Value) -> bool {
        self.flows[value.index()]
    }
}

/// Refuses a gradient form whose values do not fit each other or the parameter.
///
/// The rows of both sides of an outer product must be those of the same space: otherwise the rows
/// of one example would be multiplied by those of another.
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
            let made = if order == Order::OutIn { (width, x.width) } else { (x.width, width) };
            x.space == gradient.space
                && first.saturating_add(width) <= gradient.width
                && made == shape
        }
    };
    if fits {
        Ok(())
    } else {
        Err(Error::Graph(format!(
            "{}: its gradient form does not fit its shape {:?} or the rows of its values",
            spec.name, spec.shape
        )))
    }
}

/// The layers of a graph, in order.
fn layers(graph: &Graph) -> Result<Vec<&dyn Layer>, Error> {
    graph.ops().iter().map(layer).collect()
}
