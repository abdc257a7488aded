//! Limits of size, and the list of exceptions to them. `--accept` only shrinks the list; a reviewer
//! refuses added lines.
//!
//! The list ([`EXCEPTIONS`]) has one line for each exception: kind, size, path, and the item's name
//! unless the item is a file. An item above its limit needs a line with its size or more. A line
//! that is larger than its item, or that no item needs, is a finding, too. `cargo xtask tidy
//! --accept` rewrites the list: lines shrink, disappear, or follow an item that moved, and no line
//! is added to an existing list.
//!
//! Leaves out: what macros make. Read [`Kind`] and [`check`] first.

use super::{Finding, Rule};
use std::collections::BTreeMap;
use syn::spanned::Spanned as _;
use syn::visit::Visit;

/// The list of exceptions.
pub(super) const EXCEPTIONS: &str = "xtask/limits.txt";

/// The kind of a limit.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Lines of a file.
    File,
    /// Lines of a function, from its signature to its last brace.
    Function,
    /// Named fields of a struct.
    Struct,
    /// Constants of a file outside tests that are tuned: numbers, rates, sizes and times written in
    /// decimal digits.
    Constants,
}

impl Kind {
    const ALL: [Self; 4] = [Self::File, Self::Function, Self::Struct, Self::Constants];

    const fn word(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Function => "function",
            Self::Struct => "struct",
            Self::Constants => "constants",
        }
    }
    const fn limit(self) -> usize {
        match self {
            Self::File => 800,
            Self::Function => 100,
            Self::Struct => 16,
            Self::Constants => 12,
        }
    }
    const fn unit(self) -> &'static str {
        match self {
            Self::File | Self::Function => "lines",
            Self::Struct => "fields",
            Self::Constants => "tuned constants",
        }
    }
    const fn rule(self) -> Rule {
        match self {
            Self::File => Rule::LongFile,
            Self::Function => Rule::LongFunction,
            Self::Struct => Rule::WideStruct,
            Self::Constants => Rule::TunedConstants,
        }
    }
}

/// An item: kind, path, and name within the file, empty for the file itself.
type Item = (Kind, String, String);

/// Size of an item, and the line where it starts.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Size {
    size: usize,
    line: usize,
}

/// Reads one file.
struct Reader<'a> {
    path: &'a str,
    /// Names of the modules, types and functions around the visited item.
    around: Vec<String>,
    is_test: bool,
    constants: usize,
    found: BTreeMap<Item, Size>,
}

impl Reader<'_> {
    fn enter(&mut self, kind: Kind, name: &str, size: usize, line: usize) {
        let name = self.around.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join("::");
        let entry = self.found.entry((kind, self.path.to_owned(), name)).or_insert(Size { size, line });
        // If several items have one name, the largest counts.
        if entry.size < size {
            *entry = Size { size, line };
        }
    }

    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let (start, lines) = lines(signature.span(), block.span());
        self.enter(Kind::Function, &signature.ident.to_string(), lines, start);
    }

    fn within(&mut self, name: String, attributes: &[syn::Attribute], visit: impl FnOnce(&mut Self)) {
        let was_test = self.is_test;
        self.is_test |= attributes.iter().any(is_for_tests);
        self.around.push(name);
        visit(self);
        self.around.pop();
        self.is_test = was_test;
    }

    fn constant(&mut self, attributes: &[syn::Attribute], expression: &syn::Expr) {
        let is_test = self.is_test || attributes.iter().any(is_for_tests);
        self.constants += usize::from(!is_test && is_tuned(expression));
    }
}

/// The line at which `from` begins, and the number of lines to the end of `to`.
fn lines(from: proc_macro2::Span, to: proc_macro2::Span) -> (usize, usize) {
    let start = from.start().line;
    (start, to.end().line + 1 - start)
}

fn is_for_tests(attribute: &syn::Attribute) -> bool {
    let is_cfg = attribute.path().is_ident("cfg");
    is_cfg && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
}

/// Returns whether a constant's value is a number in decimal digits, alone or in tuples, sums,
/// products and calls.
fn is_tuned(expression: &syn::Expr) -> bool {
    use syn::Expr;
    match expression {
        Expr::Lit(literal) => match &literal.lit {
            syn::Lit::Int(number) => {
                !number.to_string().starts_with("0x") && !number.to_string().starts_with("0b")
            }
            syn::Lit::Float(_) => true,
            _ => false,
        },
        Expr::Unary(unary) => is_tuned(&unary.expr),
        Expr::Paren(inner) => is_tuned(&inner.expr),
        Expr::Binary(binary) => {
            let is_shift = matches!(binary.op, syn::BinOp::Shl(_) | syn::BinOp::Shr(_));
            !is_shift && is_tuned(&binary.left) && is_tuned(&binary.right)
        }
        Expr::Tuple(tuple) => !tuple.elems.is_empty() && tuple.elems.iter().all(is_tuned),
        Expr::Call(call) => !call.args.is_empty() && call.args.iter().all(is_tuned),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.within(item.ident.to_string(), &item.attrs, |reader| syn::visit::visit_item_mod(reader, item));
    }
    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let name = match &*item.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
            _ => None,
        };
        let name = name.unwrap_or_else(|| "impl".to_owned());
        self.within(name, &item.attrs, |reader| syn::visit::visit_item_impl(reader, item));
    }
    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.within(item.ident.to_string(), &item.attrs, |reader| syn::visit::visit_item_trait(reader, item));
    }
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block);
        self.within(item.sig.ident.to_string(), &item.attrs, |reader| {
            syn::visit::visit_item_fn(reader, item)
        });
    }
    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block);
        let name = item.sig.ident.to_string();
        self.within(name, &item.attrs, |reader| syn::visit::visit_impl_item_fn(reader, item));
    }
    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block);
        }
        syn::visit::visit_trait_item_fn(self, item);
    }
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        if let syn::Fields::Named(fields) = &item.fields {
            let line = item.ident.span().start().line;
            self.enter(Kind::Struct, &item.ident.to_string(), fields.named.len(), line);
        }
    }
    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.constant(&item.attrs, &item.expr);
    }
    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.constant(&item.attrs, &item.expr);
    }
}

/// The items of one file, with their sizes.
fn items(path: &str, text: &str) -> BTreeMap<Item, Size> {
    let is_test = path.split('/').any(|part| matches!(part, "tests" | "tests.rs" | "benches" | "examples"));
    let found = BTreeMap::new();
    let mut reader = Reader { path, around: Vec::new(), is_test, constants: 0, found };
    // A file that is not a complete Rust file, such as an included one, has only a length.
    if let Ok(file) = syn::parse_file(text) {
        reader.visit_file(&file);
    }
    let lines = text.lines().count();
    let whole = |kind| (kind, path.to_owned(), String::new());
    reader.found.insert(whole(Kind::Constants), Size { size: reader.constants, line: 1 });
    reader.found.insert(whole(Kind::File), Size { size: lines, line: lines.max(1) });
    reader.found
}

/// The items above their limits, of all files (`texts`, by path).
fn above(texts: &BTreeMap<String, String>) -> BTreeMap<Item, Size> {
    let all = texts.iter().flat_map(|(path, text)| items(path, text));
    all.filter(|((kind, ..), size)| size.size > kind.limit()).collect()
}

/// A line of the list of exceptions.
fn line((kind, path, name): &Item, size: usize) -> String {
    format!("{} {size} {path} {name}", kind.word()).trim_end().to_owned()
}

/// Reads the list: each exception's size and line. Lines of another form are findings.
fn parse(list: &str) -> (BTreeMap<Item, Size>, Vec<Finding>) {
    let (mut found, mut findings) = (BTreeMap::new(), Vec::new());
    for (number, text) in (1..).zip(list.lines()) {
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let words: Vec<&str> = text.split(' ').collect();
        let exception = match words[..] {
            [kind, size, path] => Some((kind, size, path, "")),
            [kind, size, path, name] => Some((kind, size, path, name)),
            _ => None,
        };
        let exception = exception.and_then(|(kind, size, path, name)| {
            let kind = Kind::ALL.into_iter().find(|k| k.word() == kind)?;
            Some(((kind, path.to_owned(), name.to_owned()), size.parse().ok()?))
        });
        let Some((item, size)) = exception else {
            let message = "no exception: write KIND SIZE PATH, and NAME if it is no file";
            findings.push(Finding::new(EXCEPTIONS, number, Rule::Exception, message));
            continue;
        };
        found.insert(item, Size { size, line: number });
    }
    (found, findings)
}

/// Compares the files with the limits and with the list of exceptions.
pub(super) fn check(texts: &BTreeMap<String, String>, list: &str) -> Vec<Finding> {
    let (exceptions, mut findings) = parse(list);
    let above = above(texts);
    for (item @ (kind, path, name), found) in &above {
        let Size { size, line: at } = *found;
        let of = if name.is_empty() { String::new() } else { format!("`{name}`: ") };
        match exceptions.get(item) {
            Some(exception) if size > exception.size => {
                let message =
                    format!("{of}{size} {}, more than the {} of {EXCEPTIONS}", kind.unit(), exception.size);
                findings.push(Finding::new(path, at, kind.rule(), message));
            }
            Some(exception) if size < exception.size => {
                let message =
                    format!("too large: write `{}`, or run `cargo xtask tidy --accept`", line(item, size));
                findings.push(Finding::new(EXCEPTIONS, exception.line, Rule::Exception, message));
            }
            Some(_) => {}
            None => {
                let message = format!("{of}{size} {}, more than {}: cut it", kind.unit(), kind.limit());
                findings.push(Finding::new(path, at, kind.rule(), message));
            }
        }
    }
    for (item, exception) in exceptions.iter().filter(|(item, _)| !above.contains_key(*item)) {
        let message = format!(
            "no longer needed: delete `{}`, or run `cargo xtask tidy --accept`",
            line(item, exception.size)
        );
        findings.push(Finding::new(EXCEPTIONS, exception.line, Rule::Exception, message));
    }
    findings
}

/// The list with lines that shrank, disappeared or followed their item. Without a list (`None`),
/// the first list: all items above a limit.
pub(super) fn accept(texts: &BTreeMap<String, String>, list: Option<&str>) -> String {
    let above = above(texts);
    let mut kept = BTreeMap::new();
    let Some(list) = list else {
        return write(above.into_iter().map(|(item, found)| (item, found.size)).collect());
    };
    let (mut exceptions, _) = parse(list);
    for (item, found) in &above {
        if let Some(exception) = exceptions.remove(item) {
            kept.insert(item.clone(), found.size.min(exception.size));
        }
    }
    for (item, found) in above.iter().filter(|(item, _)| !kept.contains_key(*item)).collect::<Vec<_>>() {
        let is_from =
            |old: &Item, size: usize| old.0 == item.0 && last(old) == last(item) && size >= found.size;
        let from = exceptions.iter().find(|(old, exception)| is_from(old, exception.size));
        if let Some(from) = from.map(|(old, _)| old.clone()) {
            exceptions.remove(&from);
            kept.insert(item.clone(), found.size);
        }
    }
    write(kept)
}

/// The part of an item's name that a move between rooms keeps: a file's or an item's own name.
fn last((_, path, name): &Item) -> &str {
    if name.is_empty() {
        path.rsplit('/').next().unwrap_or(path)
    } else {
        name.rsplit("::").next().unwrap_or(name)
    }
}

fn write(exceptions: BTreeMap<Item, usize>) -> String {
    let mut out =
        "# Exceptions of the limits of `cargo xtask tidy` (CONTRIBUTING.md), which may only shrink.\n"
            .to_owned();
    for (item, size) in exceptions {
        out.push_str(&line(&item, size));
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(files: &[(&str, String)]) -> BTreeMap<String, String> {
        files.iter().map(|(path, text)| ((*path).to_owned(), text.clone())).collect()
    }
    fn function(lines: usize) -> String {
        format!("struct S;\nimpl S {{\nfn f() {{\n{}}}\n}}\n", "g();\n".repeat(lines - 2))
    }
    fn found(files: &[(&str, String)], list: &str) -> Vec<String> {
        let findings = check(&texts(files), list);
        findings.iter().map(|f| format!("{}:{}: {}", f.path, f.line, f.rule.name())).collect()
    }

    #[test]
    fn each_limit_holds_on_both_sides() {
        let fields =
            |n: usize| format!("struct S {{ {} }}", (0..n).map(|i| format!("f{i}: u8,")).collect::<String>());
        let constants = |n: usize| (0..n).map(|i| format!("const C{i}: u8 = {i};\n")).collect::<String>();
        for (text, rule, at) in [
            (&function as &dyn Fn(usize) -> String, "long-function", 100),
            (&fields, "wide-struct", 16),
            (&constants, "tuned-constants", 12),
            (&|n| "\n".repeat(n), "long-file", 800),
        ] {
            assert!(found(&[("a.rs", text(at))], "").is_empty(), "{rule}");
            let findings = found(&[("a.rs", text(at + 1))], "");
            assert!(findings.len() == 1 && findings[0].ends_with(rule), "{findings:?}");
        }
    }

    #[test]
    fn only_numbers_in_decimal_digits_outside_tests_are_tuned() {
        let count = |path: &str, text: &str| {
            items(path, text)[&(Kind::Constants, path.to_owned(), String::new())].size
        };
        let tuned = "const A: f64 = -0.5;\nconst B: (u64, u64) = (7, 10);\nconst C: D = D::from_ms(2 * 8);";
        assert_eq!(count("a.rs", tuned), 3);
        assert_eq!(count("a.rs", &format!("impl S {{ {tuned} }}")), 3);
        let other = "const A: &str = \"1\";\nconst B: u8 = 0x10;\nconst C: u64 = 1 << 20;\nconst D: u8 = B;\nconst E: [u8; 2] = [1, 2];";
        assert_eq!(count("a.rs", other), 0);
        assert_eq!(count("a.rs", &format!("#[cfg(test)]\nmod tests {{ {tuned} }}")), 0);
        assert_eq!(count("a/tests.rs", tuned), 0);
    }

    #[test]
    fn an_exception_fits_its_item_exactly() {
        let files = [("a.rs", function(120))];
        let findings = |size: usize| found(&files, &format!("# why\nfunction {size} a.rs S::f\n"));
        assert_eq!(findings(119), ["a.rs:3: long-function"]);
        assert!(findings(120).is_empty());
        assert_eq!(findings(121), [format!("{EXCEPTIONS}:2: exception")]);
        assert_eq!(
            found(&[("a.rs", function(100))], "function 120 a.rs S::f"),
            [format!("{EXCEPTIONS}:1: exception")]
        );
        assert_eq!(found(&[], "function many a.rs S::f"), [format!("{EXCEPTIONS}:1: exception")]);
    }

    #[test]
    fn accepting_shrinks_or_moves_lines_and_adds_none() {
        let first = accept(&texts(&[("a.rs", function(120))]), None);
        assert!(first.ends_with("\nfunction 120 a.rs S::f\n"), "{first}");
        let then = |path: &str, lines| accept(&texts(&[(path, function(lines))]), Some(&first));
        assert!(then("a.rs", 110).ends_with("\nfunction 110 a.rs S::f\n"), "shrinks");
        assert!(then("a.rs", 130).ends_with("\nfunction 120 a.rs S::f\n"), "does not grow");
        assert_eq!(then("a.rs", 100).lines().count(), 1, "goes");
        assert!(then("other/b.rs", 120).ends_with("\nfunction 120 other/b.rs S::f\n"), "follows");
        assert_eq!(then("other/b.rs", 121).lines().count(), 1, "is not a way to add");
        let two = texts(&[("a.rs", function(120)), ("b.rs", function(120))]);
        assert_eq!(accept(&two, Some(&first)), first, "adds none");
    }
}
