//! Tests of properties that all commands have, and of documents that state the commands' limits.

mod limits;

use super::*;

/// Calls `see` with `command` and each visible command below it, and with the words of each.
pub(super) fn each(command: &clap::Command, words: &str, see: &mut dyn FnMut(&clap::Command, &str)) {
    see(command, words);
    for below in crate::docs::visible(command) {
        each(below, &format!("{words} {}", below.get_name()), see);
    }
}

/// #17: the help mixed common options with a command's own options, and some options had no help.
#[test]
fn help_describes_each_option_and_separates_common_options() {
    let mut whole = Cli::command();
    whole.build();
    let mut commands = 0;
    each(&whole, "anabranch", &mut |command, words| {
        commands += 1;
        assert!(command.get_about().is_some(), "{words}: no line that says what it does");
        for arg in command.get_arguments().filter(|a| !a.is_hide_set()) {
            let id = arg.get_id().as_str();
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            assert!(!help.is_empty(), "{words} {id}: nothing says what it is");
            let everywhere = ["verbose", "quiet", "log_format"].contains(&id);
            assert_eq!(arg.get_help_heading() == Some(EVERYWHERE), everywhere, "{words} {id}");
        }
    });
    assert!(commands > 25, "only {commands} commands were looked at");
}
