//! How types, generics and functions are written in the list: by their last name, as a reader of the code would.

use serde_json::Value;

fn each<'a>(list: &'a Value) -> impl Iterator<Item = &'a Value> + use<'a> {
    list.as_array().into_iter().flatten()
}

fn joined(parts: impl Iterator<Item = String>, with: &str) -> String {
    parts.collect::<Vec<_>>().join(with)
}

/// A JSON string without its quotes.
pub(crate) fn quoted(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The last name of a path, with its arguments.
pub(crate) fn path(path: &Value) -> String {
    let whole = path["path"].as_str().or(path["name"].as_str()).unwrap_or_default();
    let last = whole.rsplit("::").next().unwrap_or_default();
    format!("{last}{}", arguments(&path["args"]))
}

fn arguments(args: &Value) -> String {
    if let Some(inside) = args.get("angle_bracketed") {
        let plain = each(&inside["args"]).map(|arg| match arg.as_object().and_then(|arg| arg.iter().next()) {
            Some((kind, inner)) if kind == "type" => typed(inner),
            Some((kind, inner)) if kind == "const" => quoted(&inner["expr"]).to_owned(),
            Some((_, inner)) => quoted(inner).to_owned(),
            None => "_".to_owned(),
        });
        let constraints = each(&inside["constraints"]).map(|constraint| {
            let binding = &constraint["binding"];
            let name = format!("{}{}", quoted(&constraint["name"]), arguments(&constraint["args"]));
            match binding.get("equality") {
                Some(term) => format!("{name} = {}", typed(&term["type"])),
                None => format!("{name}: {}", bounds(&binding["constraint"])),
            }
        });
        let all = joined(plain.chain(constraints), ", ");
        return if all.is_empty() { String::new() } else { format!("<{all}>") };
    }
    if let Some(call) = args.get("parenthesized") {
        let output = if call["output"].is_null() { String::new() } else { format!(" -> {}", typed(&call["output"])) };
        return format!("({}){output}", joined(each(&call["inputs"]).map(typed), ", "));
    }
    String::new()
}

pub(crate) fn bounds(list: &Value) -> String {
    let bound = |bound: &Value| {
        if let Some(of) = bound.get("trait_bound") {
            let maybe = if of["modifier"] == "maybe" { "?" } else { "" };
            let lifetimes = joined(each(&of["generic_params"]).map(|p| quoted(&p["name"]).to_owned()), ", ");
            let lifetimes = if lifetimes.is_empty() { String::new() } else { format!("for<{lifetimes}> ") };
            return format!("{lifetimes}{maybe}{}", path(&of["trait"]));
        }
        match bound.get("outlives") {
            Some(lifetime) => quoted(lifetime).to_owned(),
            None => "use<…>".to_owned(),
        }
    };
    joined(each(list).map(bound), " + ")
}

/// Parameters in angle brackets, and what follows `where`.
pub(crate) fn generics(generics: &Value) -> String {
    let (params, clause) = parts(generics);
    format!("{params}{clause}")
}

fn parts(generics: &Value) -> (String, String) {
    let params = each(&generics["params"]).filter_map(|param| {
        let (kind, inner) = param["kind"].as_object()?.iter().next()?;
        // `impl Trait` in an argument is shown there.
        if inner["is_synthetic"] == true {
            return None;
        }
        let name = quoted(&param["name"]);
        let above = bounds(&inner["bounds"]);
        Some(match kind.as_str() {
            "const" => format!("const {name}: {}", typed(&inner["type"])),
            _ if above.is_empty() => name.to_owned(),
            _ => format!("{name}: {above}"),
        })
    });
    let params = joined(params, ", ");
    let clause = each(&generics["where_predicates"]).map(|predicate| match predicate.get("bound_predicate") {
        Some(of) => format!("{}: {}", typed(&of["type"]), bounds(&of["bounds"])),
        None => format!("{}: …", quoted(&predicate["lifetime_predicate"]["lifetime"])),
    });
    let clause = joined(clause, ", ");
    let params = if params.is_empty() { params } else { format!("<{params}>") };
    (params, if clause.is_empty() { clause } else { format!(" where {clause}") })
}

pub(crate) fn typed(of: &Value) -> String {
    let Some((kind, inner)) = of.as_object().and_then(|of| of.iter().next()) else {
        return of.as_str().unwrap_or("_").to_owned();
    };
    match kind.as_str() {
        "resolved_path" => path(inner),
        "generic" | "primitive" => quoted(inner).to_owned(),
        "tuple" => format!("({})", joined(each(inner).map(typed), ", ")),
        "slice" => format!("[{}]", typed(inner)),
        "array" => format!("[{}; {}]", typed(&inner["type"]), quoted(&inner["len"])),
        "borrowed_ref" => {
            let lifetime = inner["lifetime"].as_str().map(|name| format!("{name} ")).unwrap_or_default();
            let mutable = if inner["is_mutable"] == true { "mut " } else { "" };
            format!("&{lifetime}{mutable}{}", typed(&inner["type"]))
        }
        "impl_trait" => format!("impl {}", bounds(inner)),
        "dyn_trait" => {
            let traits = each(&inner["traits"]).map(|of| path(&of["trait"]));
            format!("dyn {}", joined(traits.chain(inner["lifetime"].as_str().map(str::to_owned)), " + "))
        }
        "qualified_path" => {
            let (of, name) = (typed(&inner["self_type"]), quoted(&inner["name"]));
            if inner["trait"].is_null() {
                format!("{of}::{name}")
            } else {
                format!("<{of} as {}>::{name}", path(&inner["trait"]))
            }
        }
        "function_pointer" => {
            let inputs = each(&inner["sig"]["inputs"]).map(|input| typed(&input[1]));
            format!("fn({}){}", joined(inputs, ", "), output(&inner["sig"]))
        }
        other => other.to_owned(),
    }
}

fn output(sig: &Value) -> String {
    if sig["output"].is_null() { String::new() } else { format!(" -> {}", typed(&sig["output"])) }
}

/// `async fn NAME<T>(self: &Self, ttl: Duration) -> Keeper`, with a body or not.
pub(crate) fn function(name: &str, inner: &Value) -> String {
    let (header, sig) = (&inner["header"], &inner["sig"]);
    let word = |field: &str, word: &'static str| if header[field] == true { word } else { "" };
    let words = format!("{}{}{}", word("is_const", "const "), word("is_async", "async "), word("is_unsafe", "unsafe "));
    let input = |input: &Value| match (quoted(&input[0]), typed(&input[1]).as_str()) {
        ("self", "Self") => "self".to_owned(),
        ("self", "&Self") => "&self".to_owned(),
        ("self", "&mut Self") => "&mut self".to_owned(),
        (name, of) => format!("{name}: {of}"),
    };
    let (params, clause) = parts(&inner["generics"]);
    let inputs = joined(each(&sig["inputs"]).map(input), ", ");
    format!("{words}fn {name}{params}({inputs}){}{clause}", output(sig))
}
