"""PermissionRequests: asks a client for the permissions and the answers that the runs of a session wait for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from acp.schema import RequestPermissionRequest

from drivers.contract.agent import Reply
from drivers.contract.events import AwaitedCall
from gateway.errors import BadRequest, Conflict, GatewayError
from gateway.protocols.acp.permission_options import answer_of, option_of, options
from gateway.protocols.acp.questions import answered, chosen_label, form, options_of, questions_of, reply_to_form
from gateway.protocols.acp.rpc import Client, RpcError
from gateway.protocols.acp.updates import Updates
from gateway.runs.run import Run, RunState
from gateway.sessions.permission_choices import ChosenAnswer, choices_of, with_choices
from gateway.sessions.session import Session, Submission
from gateway.sessions.settings import SessionSettings

Decision = ChosenAnswer | Reply | None
"""What the client has decided about one call: a choice, or the reply to questions to the user; None for a cancelled request."""

log = logging.getLogger(__name__)


class PermissionRequests:
    """The requests of one client about one session.

    `updates` has the calls of the run. With `forms` the client displays the agent's questions as a form. `cancel_run` is called
    when the client answers with `cancelled`, `submitted` when its decisions have been passed on to the run, and `failed` with the
    run and the error if they could not be.
    """

    def __init__(
        self,
        session: Session,
        client: Client,
        updates: Updates,
        *,
        forms: bool,
        cancel_run: Callable[[], Awaitable[None]],
        submitted: Callable[[], Awaitable[None]],
        failed: Callable[[Run, GatewayError], Awaitable[None]],
    ) -> None:
        self._session, self._client, self._updates, self._forms = session, client, updates, forms
        self._cancel_run, self._submitted, self._failed = cancel_run, submitted, failed
        self._asking: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._cancelled: asyncio.Task[None] | None = None

    @property
    def asking(self) -> bool:
        """Whether the client is being asked. Not while its decisions are passed on."""
        return self._asking is not None

    async def close(self) -> None:
        """Cancel the requests; the calls stay pending."""
        if self._watching is not None:
            self._watching.cancel()
        await self.cancel()

    def ask(self) -> None:
        """Ask about all pending calls at once: the run takes the answers together. Whoever answers first, here or over another
        protocol, decides.

        Nothing is asked while a result of the application is pending, which this client cannot give.
        """
        run = self._session.run
        if run is None or run.state is not RunState.WAITING or run.pending.awaits_results:
            return
        needed = [call for call in run.pending.calls.values() if not call.optional]
        if self._watching is not None:
            self._watching.cancel()
        self._asking = asyncio.create_task(self._decide(run, needed), name=f"permission in {self._session.id}")
        self._watching = asyncio.create_task(self._until_answered(run, self._asking))

    async def _until_answered(self, run: Run, asking: asyncio.Task[None]) -> None:
        """Cancel the questions as soon as another client has answered them."""
        await run.waits_no_longer()
        if self._asking is asking:
            await self.cancel()

    async def cancel(self) -> None:
        """Cancel the requests under way. Returns when the client has been notified."""
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.cancel()
            self._cancelled = asking
        if self._cancelled is not None:
            # Also where another task has cancelled them: the client gets the cancellation before anything else.
            await asyncio.wait([self._cancelled])

    async def _decide(self, run: Run, calls: Sequence[AwaitedCall]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(self._decision(run, call)) for call in calls]
            decisions: list[Decision] = [task.result() for task in asked]
        except* Exception as errors:
            # Among others an answer of another shape: a call without an answer must not wait for ever.
            failures = errors.split(RpcError)[1]
            first = errors.exceptions[0]
            log.warning("session %s: the client cannot be asked: %s", self._session.id, first, exc_info=failures)
            decisions = [ChosenAnswer(call.id, self._tool(call.id), "reject_once") for call in calls]
        # From here on these are answers: the end of the waiting, which they bring about, does not cancel them.
        self._asking = None
        made = [decision for decision in decisions if decision is not None]
        if len(made) < len(decisions):
            if self._session.run is run:
                await self._cancel_run()
            return
        await self._submit(run, made)

    async def _decision(self, run: Run, call: AwaitedCall) -> Decision:
        call_id, tool = call.id, self._tool(call.id)
        if call.wants == "answer":
            return await self._answers(call_id)
        settings = self._session.config
        grants = {grant.name: grant.trust for grant in settings.tools or ()}
        if grants.get(tool) and run.lacks_trust_only(call_id):
            # Trusted since the run began; the agent's process was started without that trust.
            return ChosenAnswer(call_id, tool, "allow_once")
        question = self._question(call, tool, settings)
        return answer_of(call, tool, settings, await self._client.request("session/request_permission", question))

    def _question(self, call: AwaitedCall, tool: str, settings: SessionSettings) -> RequestPermissionRequest:
        return RequestPermissionRequest(
            session_id=self._session.id,
            tool_call=self._updates.permission_details(call.id),
            options=options(choices_of(call, tool, settings)),
        )

    async def show(self, calls: Iterable[AwaitedCall]) -> None:
        """Send the requests about calls of a turn that is over. Whatever the client answers decides nothing."""
        for call in calls:
            if call.wants == "permission" and not call.optional:
                question = self._question(call, self._tool(call.id), self._session.config)
                await self._client.request("session/request_permission", question)
            elif call.wants == "answer":
                await self._answers(call.id)

    async def _answers(self, call_id: str) -> Reply | None:
        """Ask the user the questions of a call: in one form where the client has forms, else by a permission request for each."""
        details = self._updates.permission_details(call_id)
        questions = questions_of(details.raw_input)
        if self._forms and questions:
            result = await self._client.request("elicitation/create", form(self._session.id, call_id, questions))
            return reply_to_form(call_id, questions, result)
        answers: dict[str, str] = {}
        for question in questions:
            details.title = question.text
            request = RequestPermissionRequest(
                session_id=self._session.id, tool_call=details.model_copy(), options=options_of(question)
            )
            option = option_of(await self._client.request("session/request_permission", request))
            if option is None:
                return None
            if (label := chosen_label(question, option)) is not None:
                answers[question.text] = label
        return answered(call_id, answers)

    async def _submit(self, run: Run, decisions: Sequence[ChosenAnswer | Reply]) -> None:
        chosen = [decision for decision in decisions if isinstance(decision, ChosenAnswer)]
        replies = [decision.reply() if isinstance(decision, ChosenAnswer) else decision for decision in decisions]
        try:
            await self._session.submit(
                Submission(replies=replies, settings=lambda config: with_choices(config, chosen), run_id=run.id)
            )
        except (BadRequest, Conflict) as error:
            log.info("session %s: the calls were answered elsewhere: %s", self._session.id, error)
        except GatewayError as error:
            # For example a fresh agent was needed and did not start. The calls are pending still, and the next prompt asks again.
            await self._failed(run, error)
        else:
            await self._submitted()

    def _tool(self, call_id: str) -> str:
        call = self._updates.calls.get(call_id)
        return call.name if call else ""
