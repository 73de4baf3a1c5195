"""The lesson as a person meets it: a process of its own, at a terminal and through pipes."""

import contextlib
import itertools
import shutil
import subprocess
import sys
import time

import pytest
from conftest import LIMIT, ROOT, Lifeline, call, lesson_path, results_of, text, until, words_of
from offline_model import ApiError, Raw

pytest.importorskip("termios", reason="a pseudo-terminal is a thing of POSIX")
from terminal import NOBODY, PROMPT, QUESTION, Model, Terminal, piped, surroundings  # noqa: E402

LESSON = "s15"
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
EARLY = ("desks", "words", "settings", "unreachable", "unasked", "debugged", "unheard")


@pytest.fixture(scope="session")
def path(request):
    return lesson_path(request.config, LESSON)


@pytest.fixture
def pipe(path, tmp_path):
    """A function that runs a lesson through pipes without a model: status, output, errors."""
    return lambda typed, *options, **more: piped(path, typed, *options, folder=tmp_path, **more)


@pytest.fixture
def start(path, tmp_path):
    """A function that starts a lesson at a terminal; the end of the test ends it."""
    started = []

    def start(*options, **environment):
        started.append(Terminal(path, *options, folder=tmp_path, model=Model(), **environment))
        started[-1].expect(PROMPT)
        return started[-1]

    yield start
    for terminal in started:
        terminal.end()


def copied(path, folder, **settings):
    """A lesson in a repository of its own, with the tools and these lines of .env."""
    lesson = folder / "s15_agent_teams" / "code.py"
    lesson.parent.mkdir(parents=True)
    shutil.copy(path, lesson)
    (folder / "tools").symlink_to(ROOT / "tools")
    (folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return lesson


def goodbye(screen):
    """Whether the last words are a goodbye."""
    return screen.casefold().rstrip().endswith("goodbye.")


def in_order(screen, *parts):
    """Whether the parts have been shown, one behind the other."""
    for part in parts:
        _, found, screen = screen.partition(part)
        if not found:
            return False
    return True


# ── What the model answers ───────────────────────────────────────────

HOLD = "exec >{}; sleep 30 & echo; sleep 30"     # a command that holds a pipe, as its child does
NAMES = (f"member{number}" for number in itertools.count())


def spawn(*names):
    """An answer of the lead that starts teammates."""
    return [call("spawn_teammate", name=name, role="tester", prompt="Begin.") for name in names]


def run(command):
    """An answer that runs a command."""
    return [call("bash", command=command)]


def refuse(refusal):
    """An answer that the API refuses."""
    def answer(request):
        raise refusal
    return answer


# ── Coming and going ─────────────────────────────────────────────────

def test_two_empty_lines_and_q_are_three_prompts_and_a_goodbye(pipe):
    status, output, errors = pipe(b"\n\nq\n")
    assert (status, output.count(PROMPT), errors) == (0, 3, "")
    assert goodbye(output)


@pytest.mark.parametrize("typed", [b"", b"/help", b"/team stop \xff\n"])
def test_the_end_of_input_leaves_with_a_goodbye(pipe, typed):
    status, output, errors = pipe(typed)
    assert (status, errors, goodbye(output)) == (0, "", True)


@pytest.mark.parametrize("typed", ["exit", " Q ", "ｑ", "ＥＸＩＴ"])
def test_q_and_exit_leave_however_they_are_typed(pipe, typed):
    status, output, errors = pipe(f"{typed}\n/help\n".encode())
    assert (status, output.count(PROMPT), errors, goodbye(output)) == (0, 1, "", True)


@pytest.mark.parametrize("keys", ["q\r", "exit\r", "\x04"], ids=["q", "exit", "Ctrl-D"])
def test_a_person_at_a_terminal_leaves_with_a_goodbye(start, keys):
    terminal = start()
    terminal.press(keys)
    assert terminal.exit_status() == 0
    assert goodbye(terminal.screen)


@pytest.mark.parametrize("before, after", [
    (b"", b"/help\nq\n"), (b"/help\n", b"/help\nq\n"), (b"/help\n", b"q\n"), (b"/help\n", b""),
])
def test_an_output_that_nobody_reads_any_more_ends_the_lesson(path, tmp_path, before, after):
    with subprocess.Popen([sys.executable, path], cwd=tmp_path, env=surroundings(tmp_path),
                          **PIPES) as process:
        if before:
            process.stdin.write(before)
            process.stdin.flush()
            process.stdout.readline()        # as `| head -1` does
        process.stdout.close()
        process.stdin.write(after)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait(LIMIT)
        assert process.stderr.read() == b""


# ── Starting ─────────────────────────────────────────────────────────

def test_help_names_the_options_and_starts_nothing(pipe, tmp_path):
    status, output, errors = pipe(b"", "--help")
    assert (status, errors, PROMPT in output) == (0, "", False)
    assert all(option in output for option in ("--offline", "--demo", "--yes", "--workdir"))
    assert not (tmp_path / "workspace").exists()


@pytest.mark.parametrize("options, folder", [
    ([], "workspace"), (["--workdir", "../else/where"], "../else/where"),
])
def test_the_workspace_is_made_on_start(pipe, tmp_path, options, folder):
    assert pipe(b"q\n", *options)[0] == 0
    assert (tmp_path / folder).is_dir()
    assert (tmp_path / "workspace").exists() == (folder == "workspace")


@pytest.mark.parametrize("options, taken", [
    ([], "workspace"), (["--workdir", "taken"], "taken"), (["--workdir", "taken/below"], "taken"),
])
def test_a_workspace_that_cannot_be_made_is_one_sentence(pipe, tmp_path, options, taken):
    (tmp_path / taken).write_text("a file")
    status, output, errors = pipe(b"q\n", *options)
    assert (status != 0, output, errors.count("\n"), "Traceback" in errors) == (True, "", 1, False)
    assert taken in errors
    assert (tmp_path / taken).read_text() == "a file"


@pytest.mark.parametrize("environment, options, offline", [
    ({"ANTHROPIC_API_KEY": "", "ANTHROPIC_AUTH_TOKEN": ""}, [], True),
    ({"ANTHROPIC_API_KEY": "a key"}, [], False),
    ({"ANTHROPIC_AUTH_TOKEN": "a token"}, [], False),
    ({"ANTHROPIC_BASE_URL": NOBODY}, [], False),
    ({"ANTHROPIC_BASE_URL": NOBODY}, ["--offline"], True),
])
def test_who_names_no_model_hears_that_the_offline_model_answers(path, tmp_path, environment,
                                                                 options, offline):
    lesson = copied(path, tmp_path, ANTHROPIC_API_KEY="", ANTHROPIC_BASE_URL="", MODEL_ID="")
    status, output, errors = piped(lesson, b"q\n", *options, folder=tmp_path, url=None,
                                   **environment)
    assert (status, errors, "offline model" in output.casefold()) == (0, "", offline)


@pytest.mark.parametrize("environment, options", [
    ({}, []), ({"ANTHROPIC_API_KEY": "a key"}, ["--offline"]),
])
def test_a_lesson_copied_away_alone_says_what_to_set(path, tmp_path, environment, options):
    alone = shutil.copy(path, tmp_path / "code.py")
    status, output, errors = piped(alone, b"q\n", *options, folder=tmp_path, url=None,
                                   **environment)
    assert (status != 0, output, "Traceback" in errors) == (True, "", False)
    assert "ANTHROPIC_API_KEY" in errors and "ANTHROPIC_BASE_URL" in errors


def test_without_its_packages_a_lesson_says_what_to_install(pipe, tmp_path):
    (tmp_path / "dotenv.py").write_text("import a_package_that_is_not_there")
    status, output, errors = pipe(b"q\n", PYTHONPATH=str(tmp_path))
    assert (status != 0, output, "Traceback" in errors) == (True, "", False)
    assert "a_package_that_is_not_there" in errors and "requirements.txt" in errors


@pytest.mark.parametrize("environment, coloured", [
    ({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False),
])
def test_colours_are_for_a_terminal_and_not_with_no_color(start, pipe, environment, coloured):
    terminal = start(**environment)
    terminal.look("/nosuch")
    assert (b"\x1b[" in terminal.raw) == coloured
    assert "\x1b" not in pipe(b"/nosuch\n", **environment)[1]


@pytest.mark.parametrize("language", [{"LANG": "C"}, {"LC_ALL": "C"}, {"LC_ALL": "C.UTF-8"}])
def test_any_bytes_can_be_typed_whatever_the_language(start, language):
    terminal = start(**language)
    assert "/小明,你好" in terminal.look("／小明，你好")        # there is no such command
    terminal.press(b"/caf\xff\xfe\r")
    terminal.expect("/caf", "/caf", PROMPT)
    terminal.type("q")
    assert terminal.exit_status() == 0


# ── Through pipes and files, with a model ────────────────────────────

class Errand:
    """A session of the helpers: its folder, its model, and in the end status, output, errors."""

    def __init__(self, helpers, folder, lesson, typed, *options, model=None, **environment):
        self.folder, self.model = folder, model
        self.future = helpers.submit(piped, lesson, typed, *options, folder=folder, **environment)

    def result(self):
        return self.future.result()


@pytest.fixture(scope="session")
def words(path, helpers, tmp_path_factory):
    model = Model(lead=["Heard.", "Heard.", spawn("alice"), "At work.", "SUMMARY",
                        run("echo ran > lead.txt"), "It did not run."],
                  alice=[run("echo ran > alice.txt"), "RESULT"])
    yield Errand(helpers, tmp_path_factory.mktemp("words"), path,
                 "你好，ｙ\ncaf".encode() + b"\xff\xfe\nBegin.\ny\nRun it.",
                 model=model, url=model.server.url, LC_ALL="C")
    model.end()


def test_words_through_a_pipe_arrive_as_they_were_typed(words):
    words.result()
    said = words_of(words.model.calls("lead")[-1])
    assert "'你好，ｙ'" in said and "'caf\ufffd\ufffd'" in said
    assert words.model.server.refusals == []


def test_the_end_of_a_pipe_is_no_and_then_a_goodbye(words):
    status, output, errors = words.result()
    assert (status, errors, goodbye(output), "\x1b" in output) == (0, "", True, False)
    assert in_order(output, "RESULT", "SUMMARY", PROMPT, "echo ran > lead.txt", QUESTION,
                    "It did not run.", PROMPT)
    assert (words.folder / "workspace/alice.txt").exists()
    assert not (words.folder / "workspace/lead.txt").exists()


def test_the_last_lines_say_where_the_record_is(words):
    _, output, _ = words.result()
    [record] = (words.folder / "workspace/.team").glob("*/inboxes")
    assert any(str(record) in line for line in output.splitlines()[-3:])
    assert {file.name for file in record.iterdir()} == {"alice.jsonl", "lead.jsonl"}


@pytest.fixture(scope="session")
def settings(path, helpers, tmp_path_factory):
    folder = tmp_path_factory.mktemp("settings")
    model = Model(lead=[run("echo ran > proof.txt"), "It ran."])
    lesson = copied(path, folder / "course", ANTHROPIC_BASE_URL=model.server.url,
                    ANTHROPIC_API_KEY="", MODEL_ID="of-the-file")
    yield Errand(helpers, folder / "here", lesson, b"Run it.\nq\n", "--yes", "--workdir",
                 "../elsewhere", model=model, url=None, MODEL_ID="of-the-environment")
    model.end()


def test_the_env_file_is_read_and_the_environment_wins_over_it(settings):
    status, output, errors = settings.result()
    assert (status, errors, "It ran." in output) == (0, "", True)
    models = {request["model"] for request in settings.model.calls("lead")}
    assert models == {"of-the-environment"}


def test_with_yes_commands_run_unasked_in_the_named_workspace(settings):
    assert QUESTION not in settings.result()[1]
    assert (settings.folder.parent / "elsewhere/proof.txt").exists()
    assert not (settings.folder / "workspace").exists()


@pytest.fixture(scope="session")
def unreachable(path, helpers, tmp_path_factory):
    return Errand(helpers, tmp_path_factory.mktemp("unreachable"), path, b"Hello.\n/help\nq\n")


def test_an_unreachable_model_is_one_sentence_and_the_prompt(unreachable):
    status, output, errors = unreachable.result()
    sentence, help_after_it = output.split(PROMPT)[1:3]
    assert (status, errors, sentence.count("\n")) == (0, "", 1)
    assert NOBODY in sentence and "reached" in sentence and "/team" in help_after_it


@pytest.fixture(scope="session")
def unasked(path, helpers, tmp_path_factory):
    folder, unused = tmp_path_factory.mktemp("offline"), Model()
    yield Errand(helpers, folder, copied(path, folder / "course"), b"Hello.\nq\n", "--offline",
                 model=unused, url=unused.server.url, ANTHROPIC_API_KEY="a key")
    unused.end()


def test_offline_wins_over_a_key_and_a_base_url(unasked):
    status, output, errors = unasked.result()
    assert (status, errors) == (0, "")
    assert in_order(output, "ffline model", PROMPT, "lead: ", PROMPT)
    assert unasked.model.calls("lead") == []


MAIN = 'if __name__ == "__main__":\n'
TOOL_OF_A_LEARNER = '''@tool("lead")
def look_inside(agent) -> str:
    """Open the debugger."""
    breakpoint()
    return "It was opened."


'''


@pytest.fixture(scope="session")
def debugged(path, helpers, tmp_path_factory):
    lesson = copied(path, tmp_path_factory.mktemp("debugged"))
    before, main, after = lesson.read_text("utf-8").rpartition(MAIN)
    lesson.write_text(before + TOOL_OF_A_LEARNER + main + after, "utf-8")
    model = Model(lead=[[call("look_inside")], "I have looked."])
    yield Errand(helpers, lesson.parent, lesson, b"Look.\np sys.path\nc\nq\n",
                 model=model, url=model.server.url)
    model.end()


def test_a_breakpoint_in_a_tool_opens_the_debugger(debugged):
    status, output, errors = debugged.result()
    assert (status, errors) == (0, "")
    assert in_order(output, "(Pdb) ", "(Pdb) ", "I have looked.", PROMPT)
    assert "It was opened." in words_of(debugged.model.calls("lead")[-1])


def test_the_lessons_folder_is_not_on_the_path(debugged):
    _, output, _ = debugged.result()
    assert f"'{debugged.folder}'" not in output.split("(Pdb) ")[1]


@pytest.fixture(scope="session")
def unheard(path, helpers, tmp_path_factory):
    return helpers.submit(speak_to_nobody, path, tmp_path_factory.mktemp("unheard"))


def speak_to_nobody(path, folder):
    """A teammate prints where nobody reads any more, while the keyboard stays open."""
    model = Model()
    held = model.hold([call("list_teammates")])
    model.play(lead=[spawn("uli"), "At work."], uli=[held])
    environment = surroundings(folder, model.server.url)
    with subprocess.Popen([sys.executable, path], cwd=folder, env=environment, **PIPES) as process:
        process.stdin.write(b"Begin.\n")
        process.stdin.flush()
        assert held.asked.wait(LIMIT)
        process.stdout.close()
        held.free.set()
        process.wait(LIMIT)
        model.end()
        return process.stderr.read()


def test_a_teammate_that_speaks_into_a_closed_pipe_ends_the_lesson(unheard):
    assert unheard.result() == b""


# ── A desk that tests share ──────────────────────────────────────────

@pytest.fixture(scope="session")
def desks(path, tmp_path_factory):
    """A terminal where the SDK is being loaded, and a function that opens another."""
    desks = []

    def open_one():
        desks.append(Terminal(path, folder=tmp_path_factory.mktemp("desk"), model=Model()))
        desks[-1].type("Are you there?")

    open_one()
    yield desks, open_one
    for desk in desks:
        desk.end()


@pytest.fixture
def desk(desks):
    """A lesson at its prompt with nobody at work. Tests share it as long as they leave it so."""
    desks, open_one = desks
    if not desks:
        open_one()
    [desk] = desks
    if desk.seen == 0:
        desk.expect("lead: ok", PROMPT)
    yield desk
    assert desk.model.server.refusals == []
    if not tidied(desk):
        desks.remove(desk)
        desk.end()


def tidied(desk):
    """Leave the desk as the next test wants it. False if that cannot be done."""
    with contextlib.suppress(AssertionError, OSError):
        until(lambda: desk.line == PROMPT, 2 if desk.open else 0)
        desk.seen = len(desk.screen)
        for line in desk.look("/team list").splitlines():
            if line.endswith(("[PENDING]", "[RUNNING]", "[IDLE]")):
                desk.look(f"/team stop {line.partition(' ')[0]}")
        desk.model.let_go()
        desk.model.play()
        desk.look("")
        return True


def begin(desk, *told, **answers):
    """Let the lead spawn teammates with these answers; wait until it is told."""
    desk.model.play(lead=[spawn(*answers), "They are at work.", *["That is all."] * len(answers)],
                    **answers)
    desk.type("Begin.")
    return desk.expect(*told)


def put_to_work(desk, **answers):
    """Teammates at work, each with its first answer, and the person back at the prompt."""
    begin(desk, "They are at work.", **answers)
    until(lambda: all(desk.model.calls(name) for name in answers))
    desk.press_ctrl_c()
    desk.expect(PROMPT)


def still_there(desk):
    """The next words reach the model and its answer is shown."""
    desk.model.play(lead=["I am still there."])
    desk.type("Are you still there?")
    return desk.expect("I am still there.", PROMPT)


def file(desk, name):
    """A file of the workspace."""
    return desk.folder / "workspace" / name


def record(desk):
    """All that was ever written to the lead."""
    [inbox] = file(desk, ".team").glob("*/inboxes/lead.jsonl")
    return inbox.read_text("utf-8")


# ── Words ────────────────────────────────────────────────────────────

def test_results_come_to_the_lead_without_a_key_being_pressed(desk):
    first = desk.model.hold([call("write_file", path="a.txt", content="42")])
    second = desk.model.hold("RESULT-42")
    begin(desk, "spawn_teammate", "alice", "They are at work.", alice=[first, second])
    first.free.set()
    desk.expect("alice", "write_file", "a.txt")
    second.free.set()
    desk.expect("alice", "result", "RESULT-42", "That is all.", PROMPT)
    assert file(desk, "a.txt").read_text() == "42"
    assert "RESULT-42" in words_of(desk.model.calls("lead")[-1])


@pytest.mark.parametrize("words", [
    "你好，小明！请说“ｙｅｓ”　１２３", "  spaces  around  ", "emoji 🎉 é e\u0301", "y", "是", "quit",
])
def test_words_reach_the_model_as_they_are_typed(desk, words):
    desk.model.play()
    desk.type(words)
    desk.expect("lead: ok", PROMPT)
    last = desk.model.calls("lead")[-1]["messages"][-1]
    assert last == {"role": "user", "content": words}


# ── Commands ─────────────────────────────────────────────────────────

COMMANDS = ("/team", "/team list", "/team messages", "/team permissions", "/team stop", "/help")


def test_every_command_answers_before_anything_has_happened(pipe):
    lines = [*COMMANDS, "/team stop x", "/nosuch", "/"]
    status, output, errors = pipe("\n".join([*lines, "q", ""]).encode())
    assert (status, output.count(PROMPT), errors) == (0, len(lines) + 1, "")
    assert "No active teammate named 'x'" in output


@pytest.mark.parametrize("typed", ["/help", "／ｈｅｌｐ", "/HELP", "  /help  "])
def test_help_lists_the_commands(desk, typed):
    shown = desk.look(typed)
    assert all(command in shown for command in COMMANDS)


@pytest.mark.parametrize("typed", ["/nosuch", "/teamlist", "/", "／没有"])
def test_an_unknown_command_is_told_and_is_no_words_for_the_model(desk, typed):
    desk.model.play()
    assert desk.look(typed).count("\n") == 1
    assert desk.model.calls("lead") == []


@pytest.mark.parametrize("typed", ["/team", "/team list", "／ｔｅａｍ", "/TEAM  List"])
def test_the_list_tells_who_is_there_in_which_state(desk, typed):
    worker, idler = next(NAMES), next(NAMES)
    held = desk.model.hold("late")
    begin(desk, "They are at work.", "That is all.", **{worker: [held], idler: ["done"]})
    assert held.asked.wait(LIMIT)
    desk.press_ctrl_c()
    desk.expect(PROMPT)
    shown = desk.look(typed)
    assert f"{worker} [RUNNING]" in shown and f"{idler} [IDLE]" in shown
    desk.look(f"/team stop {worker}")
    assert f"{worker} [STOPPED]" in desk.look(typed)


def test_looking_at_messages_takes_none_away(desk):
    held = desk.model.hold("RESULT-5")
    put_to_work(desk, carol=[held])
    held.free.set()
    desk.expect("Waiting: 1 message(s)", PROMPT)
    for _ in range(2):
        shown = desk.look("/team messages")
        assert "carol -> lead: result" in shown and "RESULT-5" in shown and "unread" in shown
    desk.type()
    desk.expect("RESULT-5", "That is all.", PROMPT)
    assert words_of(desk.model.calls("lead")[-1]).count("RESULT-5") == 1
    shown = desk.look("/team messages")
    assert "RESULT-5" in shown and "unread" not in shown


def test_the_last_twenty_messages_are_shown(desk):
    letters = [call("send_message", to="lead", content=f"letter-{n:02}.") for n in range(25)]
    held = desk.model.hold(letters)
    put_to_work(desk, writer=[held, "RESULT"])
    held.free.set()
    desk.expect("Waiting: 26 message(s)", PROMPT)
    shown = desk.look("/team messages")
    assert "letter-24." in shown and "letter-10." in shown and "letter-00." not in shown


def test_a_teammate_is_cut_off_in_the_midst_of_a_command(desk):
    lifeline = Lifeline(file(desk, "cut"))
    begin(desk, QUESTION, "> ", dora=[run(HOLD.format("cut")), "RESULT-OF-DORA"])
    desk.type("y")
    until(lifeline.held)
    desk.press_ctrl_c()
    desk.expect(PROMPT)
    assert "dora" in desk.look("/team stop dora")
    until(lambda: not lifeline.held())
    assert "dora [STOPPED]" in desk.look("/team list")
    assert len(desk.model.calls("dora")) == 1
    assert "RESULT-OF-DORA" not in desk.look("/team messages")


def test_a_teammate_that_is_cut_off_does_nothing_more(desk):
    held = desk.model.hold([call("write_file", path="dan", content="")])
    put_to_work(desk, dan=[held, "RESULT-OF-DAN"])
    desk.look("/team stop dan")
    held.free.set()
    for _ in range(3):                   # time enough for her model's answer
        assert "dan" not in still_there(desk)
    assert not file(desk, "dan").exists()
    assert desk.model.calls("dan") == [] and "RESULT-OF-DAN" not in desk.look("/team messages")


def test_the_question_of_a_teammate_that_is_cut_off_is_gone(desk):
    begin(desk, QUESTION, "> ", eric=[run("echo ran > eric")])
    desk.press_ctrl_c()
    desk.expect("Waiting: 1 question(s)", PROMPT)
    desk.look("/team stop eric")
    assert "0 question(s)" in desk.look("/team permissions")
    assert "Waiting" not in still_there(desk)
    assert not file(desk, "eric").exists()


@pytest.mark.parametrize("name, typed", [
    ("eve", "/team stop EVE"), ("小红", "/team stop 小红"), ("Eva", "／team　stop　Ｅｖａ"),
    ("Ｅda", "/team stop Ｅda"), ("straße", "/team stop STRASSE"),
])
def test_a_name_to_stop_is_found_however_it_is_typed(desk, name, typed):
    put_to_work(desk, **{name: [desk.model.hold("late")]})
    desk.look(typed)
    assert f"{name} [STOPPED]" in desk.look("/team list")


def test_an_unknown_name_to_stop_lists_who_is_there(desk):
    put_to_work(desk, fay=[desk.model.hold("late")])
    shown = desk.look("/team stop nobody")
    assert "No active teammate named 'nobody'" in shown and "fay" in shown
    assert "fay [RUNNING]" in desk.look("/team list")


# ── Permission questions ─────────────────────────────────────────────

@pytest.mark.parametrize("answer, runs", [
    ("y", True), (" YES ", True), ("ｙ", True), ("是", True), ("a", True), ("总是", True),
    ("n", False), ("No", False), ("ｎ", False), ("否", False), ("d", False), ("从不", False),
])
def test_a_command_runs_only_if_the_person_allows_it(desk, answer, runs):
    name = next(NAMES)
    begin(desk, name, f"echo ran > {name}", QUESTION, "> ",
          **{name: [run(f"echo ran > {name}"), "RESULT"]})
    assert not file(desk, name).exists()
    desk.type(answer)
    desk.expect("RESULT", "That is all.", PROMPT)
    assert file(desk, name).exists() == runs
    [result] = results_of(desk.model.calls(name)[-1])
    assert bool(result.get("is_error")) != runs


@pytest.mark.parametrize("nonsense", ["maybe", "", "yy", "/team", "q", "y n", "可能"])
def test_what_is_no_answer_is_asked_again(desk, nonsense):
    name = next(NAMES)
    begin(desk, QUESTION, "> ", **{name: [run(f"echo ran > {name}"), "RESULT"]})
    desk.type(nonsense)
    desk.expect(QUESTION, "> ")
    assert not file(desk, name).exists()
    desk.type("y")
    desk.expect("RESULT", "That is all.", PROMPT)
    assert file(desk, name).exists()


def test_the_end_of_input_at_a_question_is_no(desk):
    begin(desk, QUESTION, "> ", gil=[run("echo ran > gil"), "RESULT"])
    desk.end_of_input()
    desk.expect("RESULT", "That is all.", PROMPT)
    assert not file(desk, "gil").exists()


@pytest.mark.parametrize("answer, runs", [("a", True), ("d", False)])
def test_always_and_never_hold_for_this_agent_and_this_command(desk, answer, runs):
    one, other = next(NAMES), next(NAMES)
    command = f"echo 1 >> {one}"
    begin(desk, QUESTION, "> ",
          **{one: [run(command), run(command), run(command + " "), "RESULT"]})
    desk.type(answer)
    desk.expect("wants", QUESTION, "> ")         # to run the one with a space more
    assert len(desk.model.calls(one)) == 3
    desk.type("n")
    desk.expect("RESULT", "That is all.", PROMPT)
    assert (file(desk, one).read_text() if runs else "") == "1\n1\n" * runs
    assert file(desk, one).exists() == runs
    begin(desk, QUESTION, "> ", **{other: [run(command), "RESULT"]})
    desk.type("n")
    desk.expect("RESULT", "That is all.", PROMPT)


def test_the_leads_own_command_asks_at_once(desk):
    desk.model.play(lead=[run("echo ran > own"), "It ran."])
    desk.type("Run it.")
    desk.expect("lead", "echo ran > own", QUESTION, "> ")
    desk.type("y")
    desk.expect("It ran.", PROMPT)
    assert file(desk, "own").exists()


def test_questions_are_asked_one_after_the_other(desk):
    asked = begin(desk, "wants", QUESTION, "> ", hal=[run("echo ran > hal"), "RESULT"],
                  ian=[run("echo ran > ian"), "RESULT"])
    desk.type("y")
    desk.expect("wants", QUESTION, "> ")
    desk.type("n")
    desk.expect("RESULT", "That is all.", PROMPT)
    [ran] = [name for name in ("hal", "ian") if file(desk, name).exists()]
    assert f"{ran} wants" in asked


# ── Ctrl-C ───────────────────────────────────────────────────────────

def test_ctrl_c_at_the_prompt_leads_back_to_it_each_time(desk):
    for _ in range(5):
        desk.press_ctrl_c()
        desk.expect(PROMPT)
    still_there(desk)


def test_ctrl_c_at_the_prompt_drops_what_was_typed(desk):
    desk.press("never sent")
    desk.expect("never sent")
    desk.press_ctrl_c()
    desk.expect(PROMPT)
    still_there(desk)
    assert "never sent" not in words_of(desk.model.calls("lead")[-1])


def test_ctrl_c_ends_the_leads_model_call(desk):
    held = desk.model.hold("TOO LATE")
    desk.model.play(lead=[held])
    desk.type("Think.")
    assert held.asked.wait(LIMIT)
    desk.press_ctrl_c()
    desk.expect(PROMPT)
    held.free.set()
    assert "TOO LATE" not in still_there(desk)


def test_ctrl_c_ends_the_leads_command_and_its_children(desk):
    lifeline = Lifeline(file(desk, "lead"))
    desk.model.play(lead=[run(HOLD.format("lead")), "It is done."])
    desk.type("Run it.")
    desk.expect(QUESTION, "> ")
    desk.type("y")
    until(lifeline.held)
    desk.press_ctrl_c()
    desk.expect(PROMPT)
    until(lambda: not lifeline.held())
    assert "It is done." not in still_there(desk)
    assert [result["is_error"] for result in results_of(desk.model.calls("lead")[-1])] == [True]


def test_ctrl_c_at_a_teammates_question_keeps_it_for_later(desk):
    begin(desk, QUESTION, "> ", jan=[run("echo ran > jan"), "RESULT"])
    desk.press_ctrl_c()
    desk.expect("Waiting: 1 question(s)", "empty line", PROMPT)
    desk.type()
    desk.expect("jan", "echo ran > jan", QUESTION, "> ")
    desk.type("y")
    desk.expect("RESULT", "That is all.", PROMPT)
    assert file(desk, "jan").exists()


def test_ctrl_c_at_the_leads_own_question_takes_it_back(desk):
    desk.model.play(lead=[run("echo ran > taken-back"), "It ran."])
    desk.type("Run it.")
    desk.expect(QUESTION, "> ")
    desk.press_ctrl_c()
    assert "Waiting" not in desk.expect(PROMPT)
    assert QUESTION not in still_there(desk)
    assert not file(desk, "taken-back").exists()


def test_teammates_go_on_after_ctrl_c_and_their_results_are_announced(desk):
    held = desk.model.hold([call("write_file", path="kim", content="")])
    put_to_work(desk, kim=[held, "RESULT-K"])
    held.free.set()
    assert "RESULT-K" not in desk.expect("Waiting: 1 message(s)", "empty line", PROMPT)
    assert file(desk, "kim").exists()
    desk.type()
    desk.expect("RESULT-K", "That is all.", PROMPT)


def test_that_somebody_is_idle_is_no_message_that_waits(desk):
    held = desk.model.hold("RESULT")
    put_to_work(desk, kit=[held])
    held.free.set()
    desk.expect("Waiting: 1 message(s)", PROMPT)
    until(lambda: "kit is idle" in record(desk))
    assert "Waiting: 1 message(s)" in desk.look("/help")


def test_what_came_before_the_persons_words_is_read_first(desk):
    held = desk.model.hold("RESULT-L")
    put_to_work(desk, lea=[held])
    held.free.set()
    desk.expect("Waiting: 1 message(s)", PROMPT)
    still_there(desk)
    said = words_of(desk.model.calls("lead")[-1])
    assert said.rindex("RESULT-L") < said.rindex("Are you still there?")


def test_a_waiting_question_is_asked_before_the_lead_thinks(desk):
    begin(desk, QUESTION, "> ", lou=[run("echo ran > lou"), desk.model.hold("RESULT")])
    desk.press_ctrl_c()
    desk.expect("Waiting: 1 question(s)", PROMPT)
    desk.model.play(lead=["Here."])
    desk.type("Where are you?")
    desk.expect("lou", QUESTION, "> ")
    assert desk.model.calls("lead") == []
    desk.type("n")
    desk.expect("lead: Here.")
    desk.press_ctrl_c()
    desk.expect(PROMPT)


def test_waiting_questions_can_be_decided_by_a_command(desk):
    desk.type("/team permissions")
    desk.expect("0 question(s)", PROMPT)
    begin(desk, QUESTION, "> ", max=[run("echo ran > max"), "RESULT"])
    desk.press_ctrl_c()
    desk.expect("Waiting: 1 question(s)", PROMPT)
    desk.type("/team permissions")
    desk.expect("max", QUESTION, "> ")
    desk.type("y")
    desk.expect("1 question(s)", "Waiting: 1 message(s)", PROMPT)
    assert file(desk, "max").exists()


# ── The screen ───────────────────────────────────────────────────────

@pytest.mark.parametrize("typed, rest", [("half a sen", "tence"), ("半句", "话，ｙ"), ("x" * 150, "y")])
def test_what_is_being_typed_survives_what_teammates_print(desk, typed, rest):
    held, name = desk.model.hold([call("list_teammates")]), next(NAMES)
    put_to_work(desk, **{name: [held, "RESULT"]})
    desk.press(typed)
    desk.expect_line(PROMPT + typed)
    held.free.set()
    desk.expect("list_teammates", PROMPT + typed, "Waiting: 1 message(s)", PROMPT + typed)
    desk.expect_line(PROMPT + typed)
    desk.model.play()
    desk.type(rest)
    desk.expect("lead: ok", PROMPT)
    assert desk.model.calls("lead")[-1]["messages"][-1]["content"].endswith(typed + rest)


def test_an_answer_that_is_being_typed_survives_what_teammates_print(desk):
    held = desk.model.hold([call("list_teammates")])
    begin(desk, QUESTION, "> ", ned=[run("echo ran > ned"), "RESULT"], ole=[held, "RESULT"])
    desk.press("ye")
    desk.expect("ye")
    held.free.set()
    desk.expect("list_teammates", QUESTION, "> ye")
    desk.type("s")
    desk.expect("That is all.", PROMPT)
    until(file(desk, "ned").exists)


EVIL = "A\x1b[2J\x07\x9b31m\rB\u202eC\x08\x00D"
RAW = [sign.encode() for sign in ("\x1b[2J", "\x07", "\x9b", "\rB", "\u202e", "\x08", "\x00")]


@pytest.mark.parametrize("answer", [
    EVIL, [text(EVIL), call("list_teammates")], run(f"echo {EVIL} > x"),
    [call("write_file", path="x", content=EVIL)], [call("write_file", path=EVIL, content="")],
], ids=["words", "words beside a call", "command", "argument", "path"])
def test_control_characters_of_a_model_do_not_reach_the_terminal(desk, answer):
    before, name = len(desk.raw), next(NAMES)
    desk.model.play(lead=[spawn(name), EVIL, EVIL], **{name: [answer, "RESULT"]})
    desk.type("Begin.")
    if "bash" in repr(answer):
        desk.expect("echo A", "D > x", QUESTION, "> ")
        desk.type("n")
    desk.expect(" -> lead: result", "lead: A", "D\n", PROMPT)
    assert not [sign for sign in RAW if sign in desk.raw[before:]]


# ── A model in trouble ───────────────────────────────────────────────

@pytest.mark.parametrize("answer, told", [
    (refuse(ApiError(401, "authentication_error", "invalid x-api-key")), "ANTHROPIC_API_KEY"),
    (refuse(ApiError(403, "permission_error", "not yours")), "not yours"),
    (refuse(ApiError(404, "not_found_error", "model: no-such")), "MODEL_ID"),
    (refuse(ApiError(413, "request_too_large", "too much")), "too much"),
    (refuse(ApiError(429, "rate_limit_error", "slow down")), "slow down"),
    (refuse(ApiError(529, "overloaded_error", "come \x1b[2J later")), "come"),
    (lambda request: Raw(b"<html>Welcome to the hotel</html>", content_type="text/html"), "model"),
    (lambda request: Raw.of({"hello": "world"}), "model"),
], ids=["wrong key", "403", "unknown model", "413", "429", "529", "a web page", "foreign JSON"])
def test_a_model_that_refuses_is_one_sentence_and_the_prompt(desk, answer, told):
    before = len(desk.raw)
    desk.model.play(lead=[answer] * 3)           # the SDK tries again where that may help
    shown = desk.look("Hello.")
    assert shown.count("\n") == 1 and told in shown and "Traceback" not in shown
    assert b"\x1b[2J" not in desk.raw[before:]
    still_there(desk)


def test_a_teammate_without_a_model_is_failed_and_the_lead_is_told(desk):
    refused = refuse(ApiError(401, "authentication_error", "invalid x-api-key"))
    begin(desk, "pia", "error", "invalid x-api-key", "That is all.", PROMPT, pia=[refused])
    assert "pia [FAILED]" in desk.look("/team list")


# Python runs this when it starts: it presses Ctrl-C when one of the modules begins to load.
IMPATIENT = """
import os, signal, sys

class Impatient:
    modules = {"asyncio.runners", "pydantic.main", "anthropic.resources"}

    def find_spec(name, *_):
        if name in Impatient.modules:
            Impatient.modules.remove(name)
            os.kill(os.getpid(), signal.SIGINT)
            open(f"pressed-at-{name}", "w").close()

sys.meta_path.insert(0, Impatient)
"""


def test_ctrl_c_while_the_sdk_loads_does_no_harm(start, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(IMPATIENT)
    terminal = start(PYTHONPATH=str(tmp_path))

    def heard():
        """Whether words have come through; a Ctrl-C may take them away."""
        terminal.model.play()
        terminal.type("Are you there?")
        terminal.expect(PROMPT)
        return terminal.model.calls("lead")

    until(lambda: heard() and len(list(tmp_path.glob("pressed-at-*"))) == 3)
    until(heard)


# ── Leaving a team at work ───────────────────────────────────────────

def test_quitting_cuts_off_who_is_at_work_whatever_it_waits_for(desk):
    lifeline, late = Lifeline(file(desk, "quit")), desk.model.hold("late")
    begin(desk, QUESTION, "> ", rex=[run(HOLD.format("quit"))], sam=["RESULT-OF-SAM"], tom=[late])
    desk.type("y")
    until(lifeline.held)
    desk.press_ctrl_c()
    desk.expect(PROMPT)
    began = time.monotonic()
    desk.type("q")
    desk.expect("undone", "undone")
    for _ in range(20):                              # the person presses Ctrl-C again and again;
        with contextlib.suppress(OSError):           # not to the end: it flushes what is printed
            desk.press("\x03")
        time.sleep(0.01)
    assert desk.exit_status() == 0
    assert time.monotonic() - began < LIMIT / 2      # and the model still does not answer
    until(lambda: not lifeline.held())               # a killed child lets go a moment later
    last = desk.screen[desk.screen.rindex(f"{PROMPT}q"):]
    assert "rex" in last and "tom" in last and "sam was" not in last and "Goodbye" in last
    assert str(next(file(desk, ".team").glob("*/inboxes"))) in last
    assert "RESULT-OF-SAM" in record(desk)
