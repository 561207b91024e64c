"""The end of a run: its model evaluated, and what it leaves behind."""

import logging
from functools import partial
from typing import TYPE_CHECKING

from sparsegroup.reporting.run_record import RankFigures, Summary
from sparsegroup.table.field_tables import tables_in
from sparsegroup.training.assessment import assess
from sparsegroup.training.evaluation import EVALUATED
from sparsegroup.training.largest_features import SHOWN, named_features
from sparsegroup.training.run_dir import finish_run, summarize

if TYPE_CHECKING:
    from sparsegroup.training.session import Session

_logger = logging.getLogger(__name__)


def concluded(session: "Session") -> Summary:
    """Evaluate the model of a run on the test rows, and write what the run leaves behind; all its ranks do."""
    log, trainer, ranks = session.log, session.trainer, session.ranks
    stream = session.parts.of_rows(log, log.train_rows, len(log), EVALUATED)
    predictions = trainer.predictions(stream) if len(log) > log.train_rows else None
    named = named_features(log, session.model.rows.values(), ranks)
    summary = summarize(
        log,
        session.model,
        trainer.history,
        assess(predictions, trainer.history, log),
        session.begun.started,
        continued_from=session.begun.continued_from,
        bad_rows=log.bad_rows,
        progress=trainer.progress,
        validation_rows=session.plan.validation_rows,
        largest=named[:SHOWN],
        ranks=_figures(session),
    )
    finish = partial(finish_run, session.folder, session.config, log, named, trainer.history, summary)
    ranks.first_does(finish, "what the run leaves behind")
    for warning in summary.warnings:
        _logger.warning(warning)
    return summary


def _figures(session: "Session") -> list[RankFigures]:
    """Those of each of several ranks."""
    ranks = session.ranks
    if ranks.is_alone:
        return []
    traffic = [table.across.shards.traffic for table in tables_in(session.model).values() if table.across is not None]
    own = RankFigures(
        rows=session.trainer.trained,
        features=sum(table.num_rows for table in session.model.rows.values()),
        sent=ranks.sent + sum(one.sent for one in traffic),
        waited=ranks.waited + sum(one.waited for one in traffic),
    )
    return ranks.of_all([own], "their figures")
