package prompts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/bank"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/envs/tools"
	"github.com/rltrain/rltrain/internal/program"
	"github.com/rltrain/rltrain/internal/words"
)

// task is the prompts of a run.
type task struct {
	*bank.Bank[prompt]
	options   *options
	asText    bool   // for models without a chat template
	system    string // system prompt, "" for none
	examples  []prompt
	stop      []string
	noAnswers string // why there are no answers, "" if there are
	worked    bool
	other     *program.Program // plays the other side; nil for single-turn episodes
	tools     *tools.Set       // that the model may call; nil for none
	calls     *tools.Format    // how it calls them
}

// Task implements envs.EpisodeSource.
func (o *options) Task(s envs.Setup) (envs.Task, error) {
	t := &task{options: o, asText: s.Text}
	var err error
	if t.stop, err = splitStop(o.Stop); err != nil {
		return nil, &envs.OptionError{Option: "stop", Err: err}
	}
	if o.SystemPrompt != "" {
		if t.system, err = bank.Instruction(o.SystemPrompt); err != nil {
			return nil, err
		}
	}
	if o.Turns != "" {
		if t.other, err = program.New(o.Turns, time.Duration(o.TurnsTimeout*float64(time.Second)), late(s)); err != nil {
			return nil, &envs.OptionError{Option: "turns_cmd", Err: err}
		}
	}
	if o.Tools != "" {
		if err := t.openTools(s); err != nil {
			return nil, &envs.OptionError{Option: "tools", Err: err}
		}
	}
	if err := t.fill(s); err != nil {
		_ = t.Close()
		return nil, err
	}
	return t, nil
}

// openTools opens the tools for a model whose chat template describes them.
func (t *task) openTools(s envs.Setup) (err error) {
	switch {
	case t.asText:
		return errors.New("tools need a chat template, which this model lacks; pass --chat-template FILE, or use another model")
	case s.ToolTemplate == nil: // the file is checked
		t.calls = tools.JSON
	case *s.ToolTemplate == "":
		return errors.New("the model's chat template does not describe tools; pass --chat-template FILE, or use another model")
	default:
		t.calls = tools.FormatOf(*s.ToolTemplate)
	}
	ctx := s.Context
	if ctx == nil {
		ctx = context.Background()
	}
	t.tools, err = tools.Open(ctx, t.options.Tools, time.Duration(t.options.ToolTimeout*float64(time.Second)), t.options.Unsafe)
	return err
}

// Replies implements envs.Conversing.
func (t *task) Replies() (roles []string) {
	if t.tools != nil {
		roles = append(roles, envs.RoleTool)
	}
	if t.other != nil {
		roles = append(roles, envs.RoleUser)
	}
	return roles
}

// Waits implements envs.Conversing.
func (t *task) Waits() bool { return t.tools != nil }

// late returns what to call with each time-out of the turn program: it tells of the first.
func late(s envs.Setup) func(error) {
	var once sync.Once
	return func(err error) {
		if s.Tell != nil {
			once.Do(func() {
				s.Tell(fmt.Sprintf("warning: raise --turns-timeout if the turn program needs more time: %v; episodes without a reply are left out", err))
			})
		}
	}
}

// fill reads the files.
func (t *task) fill(s envs.Setup) error {
	o := t.options
	train, eval := bank.Source[prompt]{}, bank.Source[prompt]{}
	learnt, judged, err := s.ProblemFiles(o.Dataset, o.Config, o.EvalDataset)
	if err != nil {
		return err
	}
	t.worked = true
	for _, of := range []struct {
		source *bank.Source[prompt]
		files  []string
		name   string
	}{{&train, learnt, o.Dataset}, {&eval, judged, cmp.Or(o.EvalDataset, o.Dataset)}} {
		if of.files == nil {
			continue
		}
		file := of.source
		file.Path = of.name
		faults := o.Faults()
		read := *o
		if file == &eval {
			read.Curriculum = ""
		}
		all, c, err := read.read(s.Reader, faults, of.name, of.files...)
		if err != nil {
			return err
		}
		if file.All = all; c.answer == "" && t.noAnswers == "" {
			t.noAnswers = fmt.Sprintf("%s has no column %s with correct answers; name it with --answer-column", file.Path, words.Quote(o.AnswerColumn))
		}
		t.worked = t.worked && c.solution != ""
		if err := t.showable(all); err != nil {
			return err
		}
		if i := slices.IndexFunc(all, func(e prompt) bool { return e.inputs.Tools != nil }); i >= 0 && t.tools != nil {
			return fmt.Errorf("%s: the row has tools, and --tools names others; remove one", all[i].place)
		}
		s.TellSkipped(faults)
		tellContradictions(s, all)
	}
	if err := t.takeExamples(); err != nil {
		return err
	}
	if t.Bank, err = bank.Divide(s.Seed, "prompt", train, eval, t.examples, s.HeldOut, prompt.key); err != nil {
		return err
	}
	if o.Curriculum != "" {
		t.Rank = func(e prompt) float64 { return e.rank }
	}
	if s.EvalOnly {
		return nil
	}
	return t.mix(s)
}

// mix adds the prompts of further data sets to those that are trained on.
func (t *task) mix(s envs.Setup) error {
	o := t.options
	sets, err := o.Sets()
	for _, set := range sets {
		files, err := s.MixedFiles(s.Context, set.Name, dataset.Train)
		if err != nil {
			return err
		}
		faults := o.Faults()
		all, c, err := o.readAll(set.Spread(s.Reader.Records(files...)), faults, set.Name)
		if err != nil {
			return err
		}
		if c.answer == "" && t.noAnswers == "" {
			t.noAnswers = fmt.Sprintf("%s has no column %s with correct answers; name it with --answer-column", set.Name, words.Quote(o.AnswerColumn))
		}
		t.worked = t.worked && c.solution != ""
		if err := t.showable(all); err != nil {
			return err
		}
		s.TellSkipped(faults)
		t.Add(all, t.examples, prompt.key)
	}
	return err
}

// tellContradictions tells of prompts whose rows have different answers.
func tellContradictions(s envs.Setup, all []prompt) {
	if s.Tell == nil {
		return
	}
	seen, n, first := map[string]prompt{}, 0, ""
	for _, e := range all {
		other, met := seen[e.key()]
		if !met {
			seen[e.key()] = e
		} else if other.answer != e.answer {
			if n++; first == "" {
				first = fmt.Sprintf("%s has %s, %s has %s", other.place, words.Quote(other.answer), e.place, words.Quote(e.answer))
			}
		}
	}
	if n > 0 {
		s.Tell(fmt.Sprintf("warning: correct the answers: %d rows have another one than an earlier row with the same prompt (first: %s)", n, first))
	}
}

// takeExamples reads the few-shot examples.
func (t *task) takeExamples() error {
	path := t.options.FewShot
	if path == "" {
		return nil
	}
	examples := *t.options
	examples.KindColumn, examples.Curriculum = "", ""
	all, c, err := examples.read(dataset.Reader{}, &dataset.Faults{}, path, path)
	if err != nil {
		return err
	}
	for i := range all {
		switch {
		case c.solution == "" && c.answer == "":
			return envs.OptionErrorf("few_shot_dataset", "%s: a few-shot example needs a column solution, completion or %s", all[i].place, t.options.AnswerColumn)
		case c.solution == "":
			all[i].solution = all[i].answer
		}
	}
	t.examples = all
	return t.showable(all)
}

// showable refuses messages for a model without a chat template.
func (t *task) showable(all []prompt) error {
	for _, e := range all {
		if t.asText && e.messages != nil {
			return fmt.Errorf("%s: messages need a chat template, which this model lacks; use a column prompt with text, or another model", e.place)
		}
	}
	return nil
}

// splitStop splits at commas; \n is a newline, \, a comma and \\ a backslash.
func splitStop(list string) ([]string, error) {
	if list == "" {
		return nil, nil
	}
	all := []string{""}
	for i := 0; i < len(list); i++ {
		c := list[i]
		last := &all[len(all)-1]
		switch {
		case c == ',':
			all = append(all, "")
		case c != '\\':
			*last += list[i : i+1]
		case i+1 == len(list):
			return nil, fmt.Errorf("%s ends in a backslash", words.Quote(list))
		default:
			i++
			plain, known := map[byte]string{'n': "\n", 't': "\t", ',': ",", '\\': `\`}[list[i]]
			if !known {
				return nil, fmt.Errorf(`%s: unknown escape \%c; use \n, \t, \, or \\`, words.Quote(list), list[i])
			}
			*last += plain
		}
	}
	for _, one := range all {
		if one == "" {
			return nil, fmt.Errorf("%s: an empty stop string would end every completion at once", words.Quote(list))
		}
	}
	return all, nil
}

// NoAnswers implements envs.Open.
func (t *task) NoAnswers() string { return t.noAnswers }

// FilterPrompts implements envs.PromptFilter.
func (t *task) FilterPrompts(keep func(envs.Env) (bool, error)) (dropped int, err error) {
	return t.Bank.FilterPrompts(func(e prompt) (bool, error) { return keep(t.episode(e)) })
}

// Episode implements envs.Task.
func (t *task) Episode(part envs.Part, index int) (envs.Env, error) {
	e, err := t.At(part, index)
	if err != nil {
		return nil, err
	}
	return t.episode(e), nil
}

func (t *task) episode(e prompt) envs.Env {
	one := &episode{task: t, prompt: e}
	if t.tools != nil {
		one.used = t.turns()
	}
	if t.worked {
		return demonstrated{one}
	}
	return one
}

// turns begins the tool calls of an episode.
func (t *task) turns() *tools.Turns {
	return tools.NewTurns(t.tools.Begin(), t.calls, t.options.MaxToolCalls, t.options.Parsing == "strict")
}

// Close stops the turn program and the tools.
func (t *task) Close() error {
	if t.other != nil {
		t.other.Close()
	}
	if t.tools != nil {
		return t.tools.Close()
	}
	return nil
}

// shown is the first observation of a prompt.
func (t *task) shown(e prompt) envs.Observation {
	o := envs.Observation{Stop: t.stop}
	if t.asText {
		var b strings.Builder
		if t.system != "" {
			b.WriteString(t.system + "\n\n")
		}
		for _, example := range t.examples {
			b.WriteString(example.text + example.solution + "\n\n")
		}
		o.Text = b.String() + e.text
		return o
	}
	o.TemplateInputs = e.inputs
	if t.tools != nil {
		o.Tools = t.tools.Descriptions()
	}
	said := e.said()
	if t.system != "" && said[0].Role != envs.RoleSystem {
		o.Messages = append(o.Messages, envs.Message{Role: envs.RoleSystem, Content: t.system})
	} else if said[0].Role == envs.RoleSystem {
		o.Messages, said = append(o.Messages, said[0]), said[1:]
	}
	for _, example := range t.examples {
		o.Messages = append(o.Messages, without(example.said(), envs.RoleSystem)...)
		o.Messages = append(o.Messages, envs.Message{Role: envs.RoleAssistant, Content: example.solution})
	}
	o.Messages = append(o.Messages, said...)
	return o
}

// said returns a prompt as messages.
func (e prompt) said() []envs.Message {
	if e.messages != nil {
		return e.messages
	}
	return []envs.Message{{Role: envs.RoleUser, Content: e.text}}
}

// without drops the messages of one role.
func without(messages []envs.Message, role string) []envs.Message {
	var left []envs.Message
	for _, m := range messages {
		if m.Role != role {
			left = append(left, m)
		}
	}
	return left
}
