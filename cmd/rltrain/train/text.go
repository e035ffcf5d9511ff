package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/torch/hub"
)

// text trains a language model: supervised, then from its own completions, as the mode says.
func (t *trainer) text(ctx context.Context) error {
	c := t.config
	start := c.Pretrained()
	if source, ok := c.Settings.(envs.RowSource); ok {
		rows, err := source.Rows(ctx, t.setup())
		if err != nil {
			return c.Blame(err)
		}
		d := labelled{}
		d.train, d.val, d.test = dataset.Split(rows, c.General.Seed)
		t.review(rows, d)
	}
	if c.Task.Plays() {
		// What is wrong with the task is found before anything is made.
		task, err := t.task(ctx, c.Form != nil && c.Form.Form == "short", nil)
		if err == nil {
			err = t.canLearn(task)
			closeTask(task)
		}
		if err != nil {
			return err
		}
	}
	var rewards *reward.Text
	if c.RL != nil {
		var done func()
		var err error
		if rewards, done, err = t.rewards(ctx); err != nil {
			return err
		}
		defer done()
	}
	if c.Supervised != nil {
		if err := t.supervise(ctx); err != nil {
			return err
		}
		start = t.stageDir(supervisedStage)
	}
	if c.RL == nil {
		return nil
	}
	return t.reinforce(ctx, start, rewards)
}

// task makes the task's episodes; asText shows them without messages, and toolTemplate is that of envs.Setup.
func (t *trainer) task(ctx context.Context, asText bool, toolTemplate *string) (envs.Task, error) {
	c, s := t.config, t.setup()
	s.Context, s.HeldOut, s.Text, s.ToolTemplate = ctx, c.Answers.EvalSamples, asText, toolTemplate
	if lines := c.StepLines(); lines != nil {
		s.Lines, s.EvalLines, s.MaxLines = lines.StepMode == "line", t.evalLines(), lines.MaxLines
	}
	task, err := c.Settings.(envs.EpisodeSource).Task(s)
	if err != nil {
		return nil, t.suggestTask(ctx, c.Blame(err))
	}
	if n := task.Len(envs.Eval); n > 0 && n < c.Answers.EvalSamples && c.Task.Needs == "" && c.Text("dataset") == "" {
		if c.Source("eval_samples") == (config.Source{}) {
			c.Answers.EvalSamples = n
			return task, nil
		}
		return nil, c.Errorf("eval_samples", "%d: task %s has only %d held-out episodes", c.Answers.EvalSamples, c.Task.Name, n)
	}
	return task, nil
}

// canLearn says what the stages lack that the task's data does not have.
func (t *trainer) canLearn(task envs.Task) error {
	c := t.config
	if open, ok := task.(envs.Open); ok && c.RL != nil && c.Rewards.Reward == "" && open.NoAnswers() != "" {
		return c.Errorf("reward", "is needed, as expr:'...' or cmd:PROGRAM: %s", open.NoAnswers())
	}
	if c.Supervised == nil || !c.Task.Demonstrations {
		return nil
	}
	part := envs.Train
	if task.Len(part) == 0 {
		part = envs.Warmup
	}
	first, err := task.Episode(part, 0)
	if _, worked := first.(envs.Demonstrator); err == nil && !worked {
		err = c.Errorf("mode", "%s trains on demonstrations, and %s has none; choose %s", c.General.Mode, t.dataName(), envs.RLOnly)
	}
	return err
}

// closeTask ends the programs of a task that has some.
func closeTask(task envs.Task) {
	if open, ok := task.(io.Closer); ok {
		_ = open.Close() // nothing of it is needed any more
	}
}

// evalLines tells whether solutions are evaluated line by line.
func (t *trainer) evalLines() bool {
	c := t.config
	if c.StepwiseEval != nil {
		return c.StepwiseEval.Stepwise
	}
	return c.Lines != nil && c.Lines.StepMode == "line"
}

// taskFor is the task in the form that the policy reads: left to choose, as text where it has no chat template.
func (t *trainer) taskFor(ctx context.Context, p *policy.CausalLM) (envs.Task, error) {
	form := t.config.Form
	template := p.ToolTemplate()
	task, err := t.task(ctx, form != nil && (form.Form == "short" || form.Form == "auto" && p.Templates == nil), &template)
	if err != nil {
		return nil, err
	}
	if t.prompts = task.Len(envs.Train); t.prompts == 0 && t.config.Fresh != nil && t.config.Fresh.Epochs > 0 {
		return nil, t.config.Errorf("rl_epochs", "task %s has problems without end: use num_steps", t.config.Task.Name)
	}
	return task, nil
}

// startingModel is the model of --model with what is to be trained, or the trained policy in start.
func (t *trainer) startingModel(ctx context.Context, start, stage string) (*policy.CausalLM, error) {
	c := t.config
	if start != "" && files.Same(start, t.stageDir(stage)) {
		return nil, c.Errorf("pretrained_model", "%s is the folder that this run writes; choose another --output-dir", start)
	}
	if c.Tokens.Engine != "" {
		return t.readText(ctx, start)
	}
	if start != "" {
		p, err := policy.LoadCausalLM(ctx, t.hub, start, "", t.dtype(), true)
		if err != nil {
			return nil, c.Errorf("pretrained_model", "%v", err)
		}
		return p, t.speak(p)
	}
	model, err := t.modelFolder(ctx)
	if err != nil {
		return nil, err
	}
	lora := c.Tokens.LoRA
	if c.FullTuning() {
		lora = config.TokenLoRA{}
	}
	o := adapter(lora.Adapter, model, c.General.Seed)
	o.Dropout, o.DoRA, o.Full, o.ModulesToSave, o.Parameters = lora.Dropout, lora.DoRA, c.FullTuning(), lora.Full, lora.Parameters
	o.DType = t.dtype()
	p, err := policy.NewCausalLM(o)
	if err != nil {
		return nil, err
	}
	return p, t.speak(p)
}

// speak has the policy render conversations and end texts as the run says.
func (t *trainer) speak(p *policy.CausalLM) error {
	p.Template = t.template
	if path := t.config.Tokens.ChatTemplate; path != "" {
		if err := p.SetTemplate(path); err != nil {
			p.Close()
			return t.config.Errorf("chat_template", "%v", err)
		}
	}
	if token := t.config.Tokens.EOSToken; token != "" {
		if err := p.EndAt(token); err != nil {
			p.Close()
			return t.config.Errorf("eos_token", "%v", err)
		}
	}
	return nil
}

// modelFolder is the folder of --model; of the model tiny it is made, with a chat template for tasks that imitate.
func (t *trainer) modelFolder(ctx context.Context) (hub.Model, error) {
	c := t.config
	if c.General.Model != config.TinyModel {
		return t.baseModel(ctx)
	}
	kind, write := "tiny", policy.TinyModel
	if !c.Task.Plays() {
		kind, write = "tiny-chat", policy.TinyChatModel
	}
	name := fmt.Sprintf("%s-%dx%d-seed%d", kind, c.Tokens.Layers, c.Tokens.Hidden, c.General.Seed)
	model := hub.Model{Dir: filepath.Join(c.General.OutputDir, name)}
	return model, write(model.Dir, c.Tokens.Layers, c.Tokens.Hidden, c.General.Seed)
}

// adapter is the configuration of a new policy with an adapter on a model.
func adapter(o config.Adapter, on hub.Model, seed uint64) policy.Config {
	return policy.Config{Dir: on.Dir, BaseModel: on.Name, Revision: on.Commit, R: o.R, Alpha: float64(o.Alpha), RSLoRA: o.RSLoRA, Init: o.Init, Targets: o.Targets, Seed: seed}
}

// dtype is how weights are kept, "" as the device prefers.
func (t *trainer) dtype() string { return t.config.Tokens.WeightType() }

// unlessAuto is the value of an option, "" for auto.
func unlessAuto(value string) string {
	if value == "auto" {
		return ""
	}
	return value
}

// solutions are the first n worked episodes of a part.
func solutions(ctx context.Context, task envs.Task, part envs.Part, n int) iter.Seq2[chat.Example, error] {
	return func(yield func(chat.Example, error) bool) {
		for i := range n {
			e, err := solution(ctx, task, part, i)
			err = cmp.Or(ctx.Err(), err)
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

func solution(ctx context.Context, task envs.Task, part envs.Part, i int) (chat.Example, error) {
	e := chat.Example{File: "exercise", Line: i + 1, Format: chat.PromptCompletion}
	episode, shown, err := envs.Begin(ctx, task, part, i)
	if err != nil {
		return e, err
	}
	worked, ok := episode.(envs.Demonstrator)
	if !ok {
		return e, errors.New("the task has no demonstrations; choose --mode rl_only")
	}
	answer := worked.Solution()
	if shown.Messages == nil {
		e.Prompt.Text, e.Completion.Text = shown.Text, answer
		return e, nil
	}
	e.Prompt.Messages = policy.Conversation(shown.Messages)
	e.Completion.Messages = policy.Conversation([]envs.Message{{Role: envs.RoleAssistant, Content: answer}})
	return e, nil
}

// choicesFit refuses answers that are longer than the policy may generate, of a task with a fixed list of answers.
func (t *trainer) choicesFit(p *policy.CausalLM, task envs.Task) error {
	choosing, ok := task.(envs.Choosing)
	if !ok {
		return nil
	}
	for _, choice := range choosing.Choices() {
		ids, err := p.Tokenizer.EncodeRaw(" "+choice, false)
		if err != nil {
			return err
		}
		if most := t.config.Answers.MaxNewTokens; len(ids) > most {
			return t.config.Errorf("max_new_tokens", "%d: the label %q has %d tokens and could never be generated; raise it to at least %d", most, choice, len(ids), len(ids)+1)
		}
	}
	return nil
}

// firstPrompt refuses answers that do not fit, and notes the first training prompt as the policy reads it, of a task with
// a fixed list of answers.
func (t *trainer) firstPrompt(ctx context.Context, w *work, p *policy.CausalLM, task envs.Task) error {
	if _, ok := task.(envs.Choosing); !ok {
		return nil
	}
	if err := t.choicesFit(p, task); err != nil {
		return err
	}
	shown, err := envs.Show(ctx, task, envs.Train, 0)
	if err != nil {
		return err
	}
	ids, err := p.EncodeObservation(shown)
	if err != nil {
		return err
	}
	text, err := p.Tokenizer.Decode(ids, false)
	w.note(fmt.Sprintf(firstPromptNote, len(ids), text))
	return err
}

// firstPromptNote has the length of a prompt, and the prompt.
const firstPromptNote = "First prompt (%d tokens):\n%s"

// evaluation is how held-out problems are answered: greedily, unless the replay options say otherwise.
func (t *trainer) evaluation() rollout.Config {
	c := t.config
	o := rollout.Config{Group: t.group, Samples: 1, MaxNew: c.Answers.MaxNewTokens, Seed: c.General.Seed, Failed: func(int, int, error) {}}
	o.MaxThinking = c.Answers.MaxThinking
	if t.evalLines() {
		o.MaxNew = c.StepLines().MaxTokens
	}
	if c.Replay != nil && c.Replay.EvalTemperature > 0 {
		o.Sampling.Temperature, o.Sampling.TopP = c.Replay.EvalTemperature, c.Replay.EvalTopP
	}
	return o
}
