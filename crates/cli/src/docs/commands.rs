//! Reference of commands, from clap's `--help` of each command.

use super::markdown::{Page, code, escaped};
use crate::EVERYWHERE;
use clap::{Arg, Command};

/// Returns a page with the options of every command, and a page for each verb with its subcommands.
pub fn pages(mut command: Command) -> Vec<Page> {
    command.build();
    let lead = "Each verb has a page, made from its `--help`. `anabranch docs man DIR` writes manual pages.";
    let mut first = Page::new("commands.md", "Commands", lead);
    let verbs: Vec<&Command> = visible(&command).collect();
    let row = |verb: &&Command| {
        let name = verb.get_name();
        [format!("[`{name}`](commands/{name}.md)"), about(verb)]
    };
    first.table(["verb", "purpose"], verbs.iter().map(row));
    first.line(format_args!("## {EVERYWHERE}"));
    options(&mut first, command.get_arguments().filter(|arg| is_listed(arg)));
    let mut pages = vec![first];
    for verb in verbs {
        let title = verb.get_name();
        let mut page = Page::new(format!("commands/{title}.md"), title, &about_at_length(verb));
        describe(&mut page, verb);
        below(&mut page, verb);
        pages.push(page);
    }
    pages
}

/// Adds the subcommands of `command` to the page.
fn below(page: &mut Page, command: &Command) {
    for noun in visible(command) {
        let words = noun.get_bin_name().unwrap_or_else(|| noun.get_name());
        page.line(format_args!(
            "\n## {}\n\n{}",
            words.trim_start_matches("anabranch "),
            about_at_length(noun)
        ));
        describe(page, noun);
        below(page, noun);
    }
}

/// Subcommands that `--help` lists, except clap's `help`.
pub fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help")
}

/// Adds the usage to the page, and the arguments other than the options of every command.
fn describe(page: &mut Page, command: &Command) {
    let usage = command.clone().render_usage().to_string();
    page.line(format_args!("\n```text\n{}\n```", usage.trim_start_matches("Usage: ").trim()));
    options(page, command.get_arguments().filter(|arg| is_listed(arg) && !is_of_every_command(arg)));
}

fn is_listed(arg: &Arg) -> bool {
    !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "help" | "version")
}

fn is_of_every_command(arg: &Arg) -> bool {
    arg.get_help_heading() == Some(EVERYWHERE)
}

/// Adds a table of arguments, if there are any.
fn options<'a>(page: &mut Page, args: impl Iterator<Item = &'a Arg>) {
    let rows: Vec<_> = args.map(|arg| [name(arg), meaning(arg)]).collect();
    if !rows.is_empty() {
        page.table(["argument", "meaning"], rows);
    }
}

/// Formats an argument as users write it: `--from SITE`, `-o, --output FILE`, `FILE...`.
fn name(arg: &Arg) -> String {
    let values = if arg.get_action().takes_values() {
        let names = arg.get_value_names().unwrap_or_default();
        names.iter().map(|name| format!(" {name}")).collect()
    } else {
        String::new()
    };
    let short = arg.get_short().map(|c| format!("-{c}"));
    let long = arg.get_long().map(|name| format!("--{name}"));
    let words: Vec<String> = short.into_iter().chain(long).collect();
    if words.is_empty() {
        code(values.trim_start().to_owned() + if is_list(arg) { "..." } else { "" })
    } else {
        code(words.join(", ") + &values)
    }
}

fn is_list(arg: &Arg) -> bool {
    arg.get_num_args().is_some_and(|range| range.max_values() > 1)
}

/// Describes an argument: its help, values, default and environment variable.
fn meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut out = escaped(&help);
    if arg.is_required_set() {
        out += " Required.";
    }
    let values: Vec<_> = arg.get_possible_values().into_iter().filter(|value| !value.is_hide_set()).collect();
    if arg.get_action().takes_values() && !values.is_empty() {
        let value = |value: &clap::builder::PossibleValue| {
            let help = value.get_help().map(|help| format!(" ({})", escaped(&help.to_string())));
            code(value.get_name()) + &help.unwrap_or_default()
        };
        out += &format!(" Values: {}.", values.iter().map(value).collect::<Vec<_>>().join(", "));
    }
    let defaults: Vec<_> =
        arg.get_default_values().iter().map(|value| code(value.to_string_lossy())).collect();
    if arg.get_action().takes_values() && !defaults.is_empty() && !arg.is_hide_default_value_set() {
        out += &format!(" Default: {}.", defaults.join(", "));
    }
    if let Some(variable) = arg.get_env() {
        out += &format!(" Variable: {}.", code(variable.to_string_lossy()));
    }
    out
}

fn about(command: &Command) -> String {
    command.get_about().map(|about| escaped(&about.to_string())).unwrap_or_default()
}

fn about_at_length(command: &Command) -> String {
    let long = command.get_long_about().map(|about| escaped(&about.to_string()));
    let text = long.unwrap_or_else(|| about(command));
    if text.ends_with('.') { text } else { text + "." }
}
