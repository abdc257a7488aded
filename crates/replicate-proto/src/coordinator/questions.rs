//! Questions about a source's file, without a transfer, for dry runs.
//!
//! A question is an inquiry of the source under a number that no transfer has. After the answer, no
//! trace of the question remains in the store, in the list of transfers or at a site. Leaves out:
//! checks of requests. Read [`Questions`] first.

use super::{
    Command, CoordinatorConfig, FullSlots, Outbox, Run, SiteId, SiteState, SlotLimits, SubmitError,
    Submitter, TransferId, TransferRequest, one_line,
};
use crate::control::{DirectoryRules, Inventory, Report};
use anabranch_graph::Topology;
use anabranch_units::Instant;
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of open questions about files.
pub const QUESTIONS_MAX: usize = 100;
/// Maximum number of open questions of all sites together, so that operators always find free
/// slots.
pub const SITES_QUESTIONS_MAX: usize = 50;
/// Maximum number of open questions of one site.
pub const SITE_QUESTIONS_MAX: usize = 10;

/// The length of a source's file, or one line with the reason why the file cannot be sent.
pub type Answer = Result<u64, String>;

/// Open questions, and answers that have not been polled.
#[derive(Debug, Default)]
pub(super) struct Questions {
    open: BTreeMap<TransferId, Question>,
    /// Number of the next question.
    next: u64,
    answers: VecDeque<(TransferId, Answer)>,
}

#[derive(Debug)]
struct Question {
    source: SiteId,
    path: String,
    submitter: Submitter,
    rules: DirectoryRules,
    asked_at: Instant,
    /// Whether the source was up and was sent the question.
    is_told: bool,
    deadline: Instant,
}

impl Question {
    fn tell(&mut self, id: TransferId, now: Instant, config: &CoordinatorConfig, out: &mut Outbox) {
        // The question ends at a fixed time, even if the source registers repeatedly.
        let end = self.asked_at + config.gather + config.inquire_timeout;
        (self.is_told, self.deadline) = (true, end.min(now + config.inquire_timeout));
        let (run, path, rules) = (Run::of_question(id), self.path.clone(), self.rules.clone());
        let command = Command::Inquire { run, is_source: true, path, submitter: self.submitter, rules };
        out.commands.push_back((self.source, command));
    }
}

impl Questions {
    /// Sets the number of the next question. No earlier controller used it, so an answer to an
    /// earlier question is not taken for an answer to a new one.
    pub(super) fn begin_at(&mut self, number: u64) {
        self.next = number;
    }

    /// Asks a question.
    ///
    /// Errors: too many open questions.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        request: TransferRequest,
        config: &CoordinatorConfig,
        topology: &Topology,
        sites: &[SiteState],
        out: &mut Outbox,
    ) -> Result<TransferId, SubmitError> {
        let TransferRequest { source, source_path: path, submitter, rules, .. } = request;
        let places =
            SlotLimits { of_site: SITE_QUESTIONS_MAX, of_sites: SITES_QUESTIONS_MAX, all: QUESTIONS_MAX };
        places.find(submitter, self.open.values().map(|q| q.submitter)).map_err(|full| match full {
            FullSlots::OfSite(site, limit) => {
                SubmitError::TooManyQuestionsOfSite { site: topology.site(site).name.clone(), limit }
            }
            FullSlots::OfSites(limit) => SubmitError::TooManyQuestionsOfSites { limit },
            FullSlots::All(limit) => SubmitError::TooManyQuestions { limit },
        })?;
        let id = Run::question(self.next).transfer;
        self.next += 1;
        let mut question = Question {
            source,
            path,
            submitter,
            rules,
            asked_at: now,
            is_told: false,
            deadline: now + config.gather,
        };
        if sites[source.index()].up {
            question.tell(id, now, config, out);
        }
        self.open.insert(id, question);
        Ok(id)
    }

    /// Forgets a question whose answer is no longer needed.
    pub(super) fn withdraw(&mut self, id: TransferId) {
        self.open.remove(&id);
    }

    /// Handles the registration of a site, possibly as a new process.
    pub(super) fn handle_site_up(
        &mut self,
        now: Instant,
        site: SiteId,
        config: &CoordinatorConfig,
        out: &mut Outbox,
    ) {
        let of_site = self.open.iter_mut().filter(|(_, q)| q.source == site);
        of_site.for_each(|(id, question)| question.tell(*id, now, config, out));
    }

    /// Handles a report that belongs to a question. Returns false for any other report.
    pub(super) fn handle_report(&mut self, topology: &Topology, site: SiteId, report: &Report) -> bool {
        let id = report.run().transfer;
        let Some(question) = self.open.get(&id).filter(|q| q.source == site) else { return false };
        let name = &topology.site(site).name;
        let answer = match report {
            Report::Inventory(Inventory { length: Some(length), .. }) => Ok(*length),
            Report::Inventory(Inventory { length: None, .. }) => {
                Err(format!("site {name} did not say the length of {}", question.path))
            }
            Report::Failed { reason, .. } => Err(format!("{name}: {}", one_line(reason))),
            _ => return true,
        };
        self.answer(id, answer);
        true
    }

    /// Abandons the questions that were not answered in time.
    pub(super) fn handle_timeout(&mut self, now: Instant, topology: &Topology, config: &CoordinatorConfig) {
        let late: Vec<_> = self.open.iter().filter(|(_, q)| now >= q.deadline).map(|(id, _)| *id).collect();
        for id in late {
            let question = &self.open[&id];
            let name = &topology.site(question.source).name;
            let reason = if question.is_told {
                format!("{name} did not answer within {}", config.inquire_timeout.in_words())
            } else {
                format!("{name} is away: start its relay, or wait for it")
            };
            self.answer(id, Err(reason));
        }
    }

    fn answer(&mut self, id: TransferId, answer: Answer) {
        self.open.remove(&id);
        self.answers.push_back((id, answer));
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.open.values().map(|q| q.deadline).min()
    }

    pub(super) fn poll_answer(&mut self) -> Option<(TransferId, Answer)> {
        self.answers.pop_front()
    }
}
