//! Which items there are: one line each, sorted by path. An item that has several public paths stands at one of them;
//! the others refer to it.

use crate::signature::{bounds, function, generics, path, quoted, typed};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The list of all public items.
pub(crate) fn list(json: &Value) -> String {
    let (index, paths) = (&json["index"], &json["paths"]);
    let mut listing = Listing { index, paths, lines: BTreeSet::new(), homes: BTreeMap::new(), re_exports: Vec::new() };
    let root = listing.item(&json["root"]).unwrap_or(&Value::Null);
    listing.module(quoted(&root["name"]), root, &mut Vec::new());
    // After all that stand where they are defined, if that is public.
    while !listing.re_exports.is_empty() {
        for (at, inner) in std::mem::take(&mut listing.re_exports) {
            listing.re_export(&at, inner);
        }
    }
    listing.lines.into_iter().map(|(_, line)| line + "\n").collect()
}

struct Listing<'a> {
    index: &'a Value,
    paths: &'a Value,
    /// By path: what belongs together stands together.
    lines: BTreeSet<(String, String)>,
    /// The path at which an item stands.
    homes: BTreeMap<String, String>,
    /// The modules that re-export something, and what.
    re_exports: Vec<(String, &'a Value)>,
}

fn ids<'a>(list: &'a Value) -> impl Iterator<Item = &'a Value> + use<'a> {
    list.as_array().into_iter().flatten()
}

impl<'a> Listing<'a> {
    fn item(&self, id: &Value) -> Option<&'a Value> {
        self.index.get(id.to_string().trim_matches('"'))
    }

    fn say(&mut self, path: &str, line: String) {
        self.lines.insert((path.to_owned(), line));
    }

    fn module(&mut self, at: &str, module: &'a Value, above: &mut Vec<String>) {
        self.say(at, format!("pub mod {at}"));
        self.members(at, module, above);
    }

    fn members(&mut self, at: &str, module: &'a Value, above: &mut Vec<String>) {
        // A module that re-exports one above it would never end.
        let id = module["id"].to_string();
        if above.contains(&id) {
            return;
        }
        above.push(id);
        for id in ids(&module["inner"]["module"]["items"]) {
            if let Some(item) = self.item(id) {
                self.one(at, item["name"].as_str(), item, above);
            }
        }
        above.pop();
    }

    /// An item in the module `at`, by this name there.
    fn one(&mut self, at: &str, name: Option<&str>, item: &'a Value, above: &mut Vec<String>) {
        let name = name.unwrap_or_default();
        let full = format!("{at}::{name}");
        let Some((kind, inner)) = item["inner"].as_object().and_then(|inner| inner.iter().next()) else { return };
        if kind == "use" {
            return self.re_exports.push((at.to_owned(), inner));
        }
        // `pub(crate)` and private items are stripped; macros and variants have the default visibility.
        if item["visibility"] != "public" && item["visibility"] != "default" {
            return;
        }
        self.homes.insert(item["id"].to_string(), full.clone());
        let attributes = if item["attrs"].to_string().contains("non_exhaustive") { "#[non_exhaustive] " } else { "" };
        match kind.as_str() {
            "module" => self.module(&full, item, above),
            "struct" => {
                self.say(&full, format!("{attributes}pub struct {full}{}", generics(&inner["generics"])));
                let kind = &inner["kind"];
                self.fields(&full, &kind["plain"]["fields"]);
                self.fields(&full, &kind["tuple"]);
                self.impls(&full, &inner["impls"]);
            }
            "enum" => {
                self.say(&full, format!("{attributes}pub enum {full}{}", generics(&inner["generics"])));
                for variant in ids(&inner["variants"]).filter_map(|id| self.item(id)).collect::<Vec<_>>() {
                    let at = format!("{full}::{}", variant["name"].as_str().unwrap_or_default());
                    self.say(&at, format!("pub variant {at}"));
                    let kind = &variant["inner"]["variant"]["kind"];
                    self.fields(&at, &kind["struct"]["fields"]);
                    self.fields(&at, &kind["tuple"]);
                }
                self.impls(&full, &inner["impls"]);
            }
            "trait" => {
                let above = bounds(&inner["bounds"]);
                let colon = if above.is_empty() { "" } else { ": " };
                self.say(&full, format!("pub trait {full}{}{colon}{above}", generics(&inner["generics"])));
                self.associated(&full, &inner["items"], true);
            }
            "function" => self.say(&full, format!("pub {}", function(&full, inner))),
            "constant" => self.say(&full, format!("pub const {full}: {}", typed(&inner["type"]))),
            "static" => self.say(&full, format!("pub static {full}: {}", typed(&inner["type"]))),
            "type_alias" => {
                self.say(&full, format!("pub type {full}{} = {}", generics(&inner["generics"]), typed(&inner["type"])));
            }
            "macro" | "proc_macro" => self.say(&full, format!("pub macro {full}!")),
            other => self.say(&full, format!("pub {other} {full}")),
        }
    }

    fn re_export(&mut self, at: &str, inner: &'a Value) {
        let as_name = format!("{at}::{}", quoted(&inner["name"]));
        match (self.item(&inner["id"]), self.homes.get(&inner["id"].to_string())) {
            (Some(target), _) if inner["is_glob"] == true => self.members(at, target, &mut Vec::new()),
            (Some(_), Some(home)) => self.say(&as_name, format!("pub use {as_name} = {home}")),
            (Some(target), None) => self.one(at, inner["name"].as_str(), target, &mut Vec::new()),
            (None, _) => self.say(&as_name, format!("pub use {as_name} = {}", quoted(&inner["source"]))),
        }
    }

    fn fields(&mut self, of: &str, fields: &'a Value) {
        for (number, id) in ids(fields).enumerate() {
            let Some(field) = self.item(id) else { continue };
            // Fields of a variant are as visible as the variant.
            if field["visibility"] == "public" || field["visibility"] == "default" {
                let name = field["name"].as_str().map_or_else(|| number.to_string(), str::to_owned);
                self.say(
                    &format!("{of}::{name}"),
                    format!("pub field {of}::{name}: {}", typed(&field["inner"]["struct_field"])),
                );
            }
        }
    }

    fn impls(&mut self, of: &str, impls: &'a Value) {
        for implementation in ids(impls).filter_map(|id| self.item(id)).collect::<Vec<_>>() {
            let inner = &implementation["inner"]["impl"];
            // What the compiler or a blanket adds is no promise of ours.
            if inner["is_synthetic"] == true || !inner["blanket_impl"].is_null() {
                continue;
            }
            if inner["trait"].is_null() {
                self.associated(of, &inner["items"], false);
            } else if self.is_known(&inner["trait"]) {
                self.say(of, format!("impl{} {} for {of}", generics(&inner["generics"]), path(&inner["trait"])));
            }
        }
    }

    /// Helper traits of the compiler, such as `StructuralPartialEq`, are left out: no user can name them.
    fn is_known(&self, of: &Value) -> bool {
        let path = &self.paths[of["id"].to_string().trim_matches('"')]["path"];
        !path.to_string().contains("Structural")
    }

    fn associated(&mut self, of: &str, items: &'a Value, in_trait: bool) {
        for item in ids(items).filter_map(|id| self.item(id)).collect::<Vec<_>>() {
            if item["visibility"] != "public" && item["visibility"] != "default" {
                continue;
            }
            let full = format!("{of}::{}", item["name"].as_str().unwrap_or_default());
            let Some((kind, inner)) = item["inner"].as_object().and_then(|inner| inner.iter().next()) else { continue };
            match kind.as_str() {
                "function" => {
                    // A method of a trait that has a body may be left out by its implementors.
                    let body = if in_trait && inner["has_body"] == true { " { … }" } else { "" };
                    self.say(&full, format!("pub {}{body}", function(&full, inner)));
                }
                "assoc_const" => self.say(&full, format!("pub const {full}: {}", typed(&inner["type"]))),
                "assoc_type" => self.say(&full, format!("pub type {full}")),
                other => self.say(&full, format!("pub {other} {full}")),
            }
        }
    }
}
