//! Bounds the values of templates: the size of each, and their sum in one rendering.
//!
//! [`super::rewrite`] routes operators and literals here; filters and functions that could make much
//! of little look at the size of their result before they make it.

use std::cell::Cell;

use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, Output, State, UndefinedBehavior, Value,
    escape_formatter, filters, functions, tests,
    value::{Kwargs, Rest, StringInput, ValueKind, ValueOrKwargs},
};

/// The largest value that a template may make, in bytes; parts of lists and maps count 16 more each.
const MAX_MADE_BYTES: usize = 4 << 20;
/// The maximum number of bytes that one rendering may create.
const MAX_TOTAL_BYTES: usize = 64 << 20;
/// The maximum number of parts that filters, comparisons and `in` may go through in one rendering.
const MOST_LOOKS: usize = 10_000_000;
/// The bytes of a text that count as one such part.
const LOOK_BYTES: usize = 64;
/// The bytes that a part of a list or map counts, beside its own.
const PART_BYTES: usize = 16;
/// The maximum depth of a value.
const DEEPEST: usize = 100;
/// The maximum repetition or fill of a list, and the maximum width of padding.
const MOST_TIMES: usize = 100_000;
/// Blanks before each level of written JSON.
const MOST_INDENT: usize = 16;

thread_local! {
    /// The bytes that the rendering on this thread has created so far.
    static SPENT: Cell<usize> = const { Cell::new(0) };
    /// The parts that it has gone through.
    static LOOKS: Cell<usize> = const { Cell::new(0) };
}

/// A bare environment for templates: strict, without escapes, with so much fuel, and bounded.
pub(crate) fn environment(fuel: u64) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(fuel));
    environment.set_recursion_limit(64);
    environment.set_formatter(format_value);
    // It would print what the host put beside the slots.
    environment.remove_global("debug");
    environment.add_function("concat__", concat);
    environment.add_function("add__", add);
    environment.add_function("mul__", mul);
    environment.add_function("sized__", sized);
    environment.add_function("cut__", |value: Value, _of: Rest<Value>| sized(value));
    environment.add_function("plain__", plain);
    environment.add_function("looked__", looked);
    environment.add_function("spend__", |bytes: usize| charge(bytes).map(|()| Value::from("")));
    environment.add_function("dict", |value: Option<Value>, more: Kwargs| {
        sized(functions::dict(value, more)?)
    });
    environment.add_function("namespace", |defaults: Option<ValueOrKwargs>| {
        if let Some(defaults) = &defaults {
            look(&Value::from(defaults.clone()), 0)?;
        }
        functions::namespace(defaults)
    });
    environment.add_test("in", is_in);
    environment.add_filter("sized__", sized);
    environment.add_filter("looked__", looked);
    environment.add_filter("glanced__", |value: Value| glance(&value).map(|()| value));
    environment.add_filter("replace", replace);
    environment.add_filter("format", format);
    environment.add_filter("indent", indent);
    environment.add_filter("join", join);
    environment.add_filter("batch", batch);
    environment.add_filter("slice", slice);
    environment.add_filter("tojson", tojson);
    environment
}

/// Begins a rendering on this thread.
pub(crate) fn begin() {
    SPENT.set(0);
    LOOKS.set(0);
}

fn too_large(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{what} would be larger than 4 MiB"))
}

/// Counts bytes that are about to be made.
///
/// # Errors
/// Fails when the rendering has made too much.
pub(crate) fn charge(bytes: usize) -> Result<(), Error> {
    let spent = SPENT.get().saturating_add(bytes);
    SPENT.set(spent);
    if spent > MAX_TOTAL_BYTES {
        let message = "the template makes more than 64 MiB of values";
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    Ok(())
}

/// Counts a value of this size, if it is not too large.
fn make(bytes: usize, what: &str) -> Result<(), Error> {
    if bytes > MAX_MADE_BYTES {
        return Err(too_large(what));
    }
    charge(bytes)
}

/// The size of a value with all its parts, and how many those are.
#[derive(Debug, Default, Clone, Copy)]
struct Size {
    bytes: usize,
    parts: usize,
    depth: usize,
}

impl Size {
    fn of(value: &Value) -> Result<Self, Error> {
        let mut size = Self::default();
        size.add(value, 0)?;
        Ok(size)
    }

    fn add(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEEPEST {
            return Err(Error::new(ErrorKind::InvalidOperation, "the value is nested too deep"));
        }
        self.depth = self.depth.max(depth);
        self.parts += 1;
        self.bytes += value.as_str().map_or(PART_BYTES, |text| text.len() + PART_BYTES);
        if self.bytes > MAX_MADE_BYTES {
            return Err(too_large("the value"));
        }
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable => {
                for part in value.try_iter()? {
                    self.add(&part, depth + 1)?;
                }
            }
            ValueKind::Map => {
                for key in value.try_iter()? {
                    self.add(&value.get_item(&key)?, depth + 1)?;
                    self.add(&key, depth + 1)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Counts one part that is about to be looked at.
fn glance(value: &Value) -> Result<(), Error> {
    let parts = 1 + value.as_str().map_or(0, |text| text.len() / LOOK_BYTES);
    let looks = LOOKS.get().saturating_add(parts);
    LOOKS.set(looks);
    if looks > MOST_LOOKS {
        let message = "the template goes through more than 10 million parts of values";
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    Ok(())
}

/// Counts a value that is about to be gone through, with all its parts. A value of a flow may be
/// deeper than one that is made.
fn look(value: &Value, depth: usize) -> Result<(), Error> {
    if depth > 2 * DEEPEST {
        return Err(Error::new(ErrorKind::InvalidOperation, "the value is nested too deep"));
    }
    glance(value)?;
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            for part in value.try_iter()? {
                look(&part, depth + 1)?;
            }
        }
        ValueKind::Map => {
            for key in value.try_iter()? {
                look(&value.get_item(&key)?, depth + 1)?;
                look(&key, depth + 1)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Lets a value pass that may be gone through.
fn looked(value: Value) -> Result<Value, Error> {
    look(&value, 0)?;
    Ok(value)
}

/// `is in`, which `select` and its like call for each part of a list.
fn is_in(state: &State<'_, '_>, value: &Value, container: &Value) -> Result<bool, Error> {
    look(container, 0)?;
    tests::is_in(state, value, container)
}

/// Lets a value pass that is not too large.
fn sized(value: Value) -> Result<Value, Error> {
    // Texts count for what they hold and nothing more, so that a whole text may be as long as a
    // value of a flow may.
    match value.as_str() {
        Some(text) => make(text.len(), "the text")?,
        None => charge(Size::of(&value)?.bytes)?,
    }
    Ok(value)
}

/// A value to be kept in a namespace: a copy without namespaces, which could hold themselves.
fn plain(value: Value) -> Result<Value, Error> {
    let value = sized(value)?;
    Ok(if has_map(&value)? { copy(&value)? } else { value })
}

fn has_map(value: &Value) -> Result<bool, Error> {
    Ok(match value.kind() {
        ValueKind::Map => true,
        ValueKind::Seq | ValueKind::Iterable => {
            for part in value.try_iter()? {
                if has_map(&part)? {
                    return Ok(true);
                }
            }
            false
        }
        _ => false,
    })
}

fn copy(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Map => {
            let pair = |key: Value| Ok((key.clone(), copy(&value.get_item(&key)?)?));
            let pairs: Result<Vec<(Value, Value)>, Error> = value.try_iter()?.map(pair).collect();
            Ok(Value::from_pairs(pairs?))
        }
        ValueKind::Seq | ValueKind::Iterable => value.try_iter()?.map(|it| copy(&it)).collect(),
        _ => Ok(value.clone()),
    }
}

fn format_value(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    charge(match value.as_str() {
        Some(text) => text.len(),
        None => Size::of(value)?.bytes,
    })?;
    escape_formatter(out, state, value)
}

/// The two operands of an operator; a name that nothing defines is an error, as it is for the
/// operator itself.
fn operands(left: &Value, right: &Value) -> Result<usize, Error> {
    if left.is_undefined() || right.is_undefined() {
        return Err(ErrorKind::UndefinedError.into());
    }
    Ok(Size::of(left)?.bytes + Size::of(right)?.bytes)
}

fn concat(left: Value, right: Value) -> Result<Value, Error> {
    make(operands(&left, &right)?, "the text")?;
    Ok(Value::from(format!("{left}{right}")))
}

/// An operator of the engine itself, over two values.
fn engine(expression: &str, left: &Value, right: &Value) -> Result<Value, Error> {
    thread_local! {
        static PLAIN: Environment<'static> = Environment::new();
    }
    PLAIN.with(|plain| {
        let parsed = plain.compile_expression(expression)?;
        let made = parsed.eval(minijinja::context! { a => left, b => right });
        // Without its place, which is none of the template's.
        made.map_err(|error| {
            Error::new(error.kind(), error.detail().unwrap_or("invalid operands").to_owned())
        })
    })
}

fn add(left: Value, right: Value) -> Result<Value, Error> {
    make(operands(&left, &right)?, "the sum")?;
    engine("a + b", &left, &right)
}

fn mul(left: Value, right: Value) -> Result<Value, Error> {
    operands(&left, &right)?;
    for (what, times) in [(&left, &right), (&right, &left)] {
        let is_many =
            matches!(what.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Iterable);
        if let (true, Some(times)) = (is_many, times.as_usize()) {
            if what.as_str().is_none() && times > MOST_TIMES {
                return Err(too_large("the repeated list"));
            }
            let one = what
                .as_str()
                .map_or_else(|| Size::of(what).map(|it| it.bytes), |text| Ok(text.len()))?;
            make(one.saturating_mul(times), "the repeated value")?;
        }
    }
    engine("a * b", &left, &right)
}

fn replace(
    state: &mut State<'_, '_>,
    value: StringInput<'_>,
    from: StringInput<'_>,
    to: StringInput<'_>,
) -> Result<Value, Error> {
    let found = value.as_str().matches(from.as_str()).count();
    make(value.as_str().len() + found.saturating_mul(to.as_str().len()), "the text")?;
    filters::replace(state, value, from, to)
}

fn format(
    state: &mut State<'_, '_>,
    text: &Value,
    args: Rest<ValueOrKwargs>,
) -> Result<Value, Error> {
    let pattern = text.as_str().unwrap_or_default();
    let (mut widest, mut widths) = (0_usize, 0_usize);
    for digits in pattern.split(|c: char| !c.is_ascii_digit()).filter(|it| !it.is_empty()) {
        widths = widths.saturating_add(digits.parse().unwrap_or(usize::MAX));
    }
    for arg in &args.0 {
        let value = Value::from(arg.clone());
        // `*` takes its width from an argument.
        if let (true, Some(width)) = (pattern.contains('*'), value.as_i64()) {
            let width = usize::try_from(width.unsigned_abs()).unwrap_or(usize::MAX);
            widths = widths.saturating_add(width);
        }
        widest = widest.max(Size::of(&value)?.bytes);
    }
    let times = pattern.matches('%').count();
    let made = widest.saturating_mul(times).saturating_add(widths).saturating_add(pattern.len());
    make(made, "the text")?;
    filters::format(state, text, args)
}

fn indent(
    value: StringInput<'_>,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let width = match width {
        Some(width) => Some(width),
        None => kwargs.get::<Option<usize>>("width")?,
    };
    let lines = value.as_str().matches('\n').count() + 1;
    let more = width.unwrap_or(4).saturating_mul(lines);
    make(more.saturating_add(value.as_str().len()), "the text")?;
    filters::indent(value, width, first, blank, kwargs)
}

fn join(
    state: &mut State<'_, '_>,
    value: &Value,
    joiner: Option<StringInput<'_>>,
    attribute: Option<&str>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let between = match &joiner {
        Some(joiner) => joiner.as_str().len(),
        None => kwargs.get::<Option<&str>>("d")?.map_or(0, str::len),
    };
    let size = Size::of(value)?;
    let parts = value.len().unwrap_or(size.parts);
    make(size.bytes.saturating_add(between.saturating_mul(parts)), "the text")?;
    filters::join(state, value, joiner, attribute, kwargs)
}

fn batch(
    state: &State<'_, '_>,
    value: Value,
    count: usize,
    fill: Option<Value>,
) -> Result<Value, Error> {
    few(count)?;
    filters::batch(state, value, count, fill)
}

fn slice(
    state: &State<'_, '_>,
    value: Value,
    count: usize,
    fill: Option<Value>,
) -> Result<Value, Error> {
    few(count)?;
    filters::slice(state, value, count, fill)
}

fn few(count: usize) -> Result<(), Error> {
    if count > MOST_TIMES {
        Err(too_large("the list"))
    } else {
        make(count * PART_BYTES, "the list")
    }
}

fn tojson(value: &Value, indent: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => kwargs.get::<Option<Value>>("indent")?,
    };
    let width = indent.as_ref().and_then(|it| it.as_usize()).unwrap_or(2);
    if width > MOST_INDENT {
        let message = format!("JSON is indented by {MOST_INDENT} blanks at most");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    let size = Size::of(value)?;
    let blanks = if indent.is_some() { size.parts * size.depth * width } else { 0 };
    make(size.bytes.saturating_add(blanks), "the text")?;
    filters::tojson(value, indent, kwargs)
}
