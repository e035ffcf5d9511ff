package train

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/remote"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
)

// reinforce is the RL stage of a language model: the policy in start, or without one a new policy, learns from its own
// completions.
func (t *trainer) reinforce(ctx context.Context, start string, rewards *reward.Text) error {
	c := t.config
	p, err := t.startingModel(ctx, start, rlStage)
	if err != nil {
		return err
	}
	defer p.Close()
	task, err := t.taskFor(ctx, p)
	if err != nil {
		return err
	}
	defer closeTask(task)
	w := &work{
		stage: rlStage, what: "reinforcement learning with " + c.RL.Algorithm, from: cmp.Or(start, c.General.Model),
		algorithm: c.Learning, settings: t.reinforced(t.rlSteps(), tokenMicroTokens, "reward"), label: c.RL.Algorithm, unit: "step",
	}
	defer w.close()
	if n := task.Len(envs.Train); n > 0 {
		w.splits = []report.Split{{Name: "train", Rows: n}, {Name: "held out", Rows: task.Len(envs.Eval)}}
	}
	noteGeneration(w, p)
	if len(p.AddedEOS()) > 0 {
		noteEnds(w, p)
	}
	if err := t.firstPrompt(ctx, w, p, task); err != nil {
		return err
	}
	note, longest, err := t.filterPrompts(ctx, p, task)
	if err != nil {
		return err
	}
	if w.note(note); longest > 0 && c.LongestAnswer() == c.ActionTokens() && !answered(task) { // a single message
		w.longest = longest + c.LongestAnswer()
	}
	noteThoughts(w, p, task)
	if err := t.otherModels(ctx, w, p); err != nil {
		return err
	}
	t.measured(&w.settings)
	if _, err := t.trained(ctx, w, p, start); err != nil {
		return err
	}
	evaluation := t.evaluation()
	evaluation.Rewards = rewards
	var sampler rollout.Generator
	w.open = func(stage *run.Stage) (err error) {
		if sampler, err = t.writer(ctx, w, stage, p); err != nil {
			return err
		}
		teach, err := t.servedTeacher(ctx, w, stage, p)
		if err != nil {
			return err
		}
		if w.source, err = t.source(sampler, task, rewards, teach); err != nil {
			return err
		}
		w.settings.Evaluate = evaluate.Answers(sampler, task, c.Answers.EvalSamples, c.Rounds.EvalEvery, evaluation)
		w.settings.Evaluate.Metric = unlessAuto(c.Rounds.Metric)
		return nil
	}
	w.finish = func(ctx context.Context, stage *run.Stage, result train.Result) error {
		return t.finishReinforcement(ctx, stage, p, sampler, task, evaluation, result)
	}
	_, err = t.learn(ctx, w)
	return err
}

// answered reports whether messages of unknown length follow the model's in the task's episodes.
func answered(task envs.Task) bool {
	conversing, ok := task.(envs.Conversing)
	return ok && len(conversing.Replies()) > 0
}

// noteThoughts says if the chat template drops thoughts that episodes of several messages keep.
func noteThoughts(w *work, p *policy.CausalLM, task envs.Task) {
	conversing, ok := task.(envs.Conversing)
	if !ok {
		return
	}
	for _, role := range conversing.Replies() {
		if p.DropsThoughts(role) {
			w.note(fmt.Sprintf("note: the chat template drops earlier thoughts once a message of the role %s follows; each such message begins another segment of its episode, a sample of its own with the episode's advantage", role))
		}
	}
}

// measured sets how a step is divided, and the lengths and the temperature of what it learns from.
func (t *trainer) measured(settings *train.Config) {
	c := t.config
	settings.Checkpointing, settings.Longest = c.Tokens.Checkpointing, c.LongestAnswer()
	if c.Minibatches != nil {
		settings.Minibatches = c.Minibatches.Minibatches
	}
	if c.Replay == nil {
		settings.Samples, settings.Temperature = c.Fresh.SamplesPerPrompt, c.Fresh.Temperature
		return
	}
	settings.MinibatchSize, settings.Temperature, settings.Longest = c.Replay.BatchSize, c.Replay.Temperature, c.ActionTokens()
	if settings.Reference == nil {
		settings.ReferenceEvery = c.Replay.RefUpdateEvery
	}
}

// otherModels loads the reference, if it is another model, and the teacher that the algorithm needs.
func (t *trainer) otherModels(ctx context.Context, w *work, p *policy.CausalLM) error {
	c, needs := t.config, w.algorithm.Needs()
	load := func(option, name string) (*policy.CausalLM, error) {
		other, err := policy.LoadCausalLM(ctx, t.hub, name, "", t.dtype(), false)
		if err != nil {
			return nil, c.Errorf(option, "%v", err)
		}
		w.closing(other.Close)
		return other, nil
	}
	if o := c.Replay; o != nil && needs.Reference && o.ReferenceModel != "" && o.ReferenceModel != c.General.Model {
		other, err := load("reference_model", o.ReferenceModel)
		if err != nil {
			return err
		}
		w.settings.Reference = other
	}
	if needs.Teacher == "" || needs.Teacher == algo.TeacherSelf || needs.Server.URL != "" {
		return nil
	}
	teacher, err := load("teacher", needs.Teacher)
	if err != nil {
		return err
	}
	err = p.CheckSameTokenizer(teacher)
	if own, its := p.MaxLength(), teacher.MaxLength(); err == nil && its < own {
		err = fmt.Errorf("%s reads %d tokens, but the policy may generate up to %d", needs.Teacher, its, own)
	}
	if err != nil {
		return c.Errorf("teacher", "%v", err)
	}
	w.settings.Teacher = teacher
	return nil
}

// servedTeacher asks the teacher on a server; nil = there is none.
func (t *trainer) servedTeacher(ctx context.Context, w *work, stage *run.Stage, p *policy.CausalLM) (func(context.Context, []*rl.Trajectory) error, error) {
	c, needs := t.config, w.algorithm.Needs()
	if needs.Server.URL == "" {
		return nil, nil
	}
	teacher, err := remote.NewTeacher(ctx, p, remote.TeacherConfig{
		TeacherServer: needs.Server, Model: needs.Teacher, Key: os.Getenv("TEACHER_API_KEY"), Positions: c.LongestAnswer() + 1,
		Warn: func(format string, args ...any) { _ = stage.Printf(format, args...) }, // an error comes again with the next line
	})
	if err != nil {
		return nil, c.Errorf("teacher_url", "%v", err)
	}
	w.closing(teacher.Close)
	return teacher.Rate, stage.Printf("The teacher is %s on %s", needs.Teacher, needs.Server.URL)
}

// writer is what samples completions: servers, or this process.
func (t *trainer) writer(ctx context.Context, w *work, stage *run.Stage, p *policy.CausalLM) (rollout.Generator, error) {
	f := t.config.Fresh
	if f == nil || len(f.Remote.URLs) == 0 {
		return t.sampler(ctx, w, stage, p, t.slots())
	}
	servers, err := remote.New(ctx, p, remote.Config{
		Options: f.Remote, Key: os.Getenv("ROLLOUT_API_KEY"), Temperature: f.Temperature, Positions: t.config.LongestAnswer() + 1, Group: t.group,
		Warn: func(format string, args ...any) { _ = stage.Printf(format, args...) }, // an error comes again with the next line
	})
	if err != nil {
		return nil, t.config.Errorf("rollout_url", "%v", err)
	}
	w.closing(servers.Close)
	return servers, stage.Printf("Completions are sampled by %s", strings.Join(f.Remote.URLs, ", "))
}

// slots is how many completions are sampled at the same time.
func (t *trainer) slots() int {
	c := t.config
	if c.Fresh != nil {
		return c.Fresh.NumGenerators * c.Fresh.SamplesPerPrompt
	}
	return min(samplerSlots, max(c.Replay.PromptsPerStep, c.Answers.EvalSamples))
}

// source is what the policy learns from.
func (t *trainer) source(sampler rollout.Generator, task envs.Task, rewards *reward.Text, teach func(context.Context, []*rl.Trajectory) error) (train.Source, error) {
	c := t.config
	s := rollout.Setup{Options: c.SourceOptions, Sampler: sampler, Task: task, Rollout: rollout.TokensConfig{
		Steps: t.rlSteps(), MaxNew: c.ActionTokens(), MaxThinking: c.Answers.MaxThinking, MaxTotal: c.LongestAnswer(), Greedy: c.Learning.Needs().Greedy,
		Context: c.Learning.Needs().Context, Rewards: rewards, Teacher: teach, Seed: c.General.Seed, Now: time.Now, Group: t.group,
	}}
	if c.Samples.Name == rollout.Buffer {
		s.Options = &c.Replay.ReplayOptions
	}
	if c.Fresh != nil {
		s.Rollout.Options, s.Rollout.Verbose = c.Fresh.Options, c.Fresh.Verbose
	}
	t.trial.limit(&s)
	source, err := c.Samples.New(s)
	return source, c.Blame(err)
}

// filterPrompts drops training prompts that leave the policy no room for a token, and says how many there were. longest is
// the number of tokens of the longest other one; 0 = unknown.
func (t *trainer) filterPrompts(ctx context.Context, p *policy.CausalLM, task envs.Task) (note string, longest int, err error) {
	filter, ok := task.(envs.PromptFilter)
	if !ok {
		return "", 0, nil
	}
	all, need := task.Len(envs.Train), t.config.ActionTokens()
	dropped, err := filter.FilterPrompts(func(episode envs.Env) (bool, error) {
		shown, err := episode.Reset(ctx)
		if err != nil {
			return false, err
		}
		ids, err := p.EncodeObservation(shown)
		fits := len(ids)+need <= p.MaxLength()
		if fits {
			longest = max(longest, len(ids))
		}
		return fits, err
	})
	if err != nil || dropped == 0 {
		return "", longest, err
	}
	note = fmt.Sprintf("%d of %d training prompts leave no room for %d new tokens in the model's %d positions: lower --max-new-tokens", dropped, all, need, p.MaxLength())
	if shots := t.config.Text("few_shot"); shots != "" && shots != "0" {
		note += ", or show fewer examples with --few-shot"
	}
	if dropped == all {
		return "", 0, errors.New(note)
	}
	return "warning: " + note + "; they are skipped", longest, nil
}

// finishReinforcement evaluates the kept weights on unseen problems, and writes what came of the stage.
func (t *trainer) finishReinforcement(ctx context.Context, stage *run.Stage, p *policy.CausalLM, sampler rollout.Generator, task envs.Task, evaluation rollout.Config, result train.Result) error {
	c := t.config
	var scores report.AnswerResults
	for _, one := range []struct {
		from json.RawMessage
		into **rl.AnswerScores
	}{{result.Before, &scores.Before}, {result.Best, &scores.After}, {result.Last, &scores.Last}} {
		if err := json.Unmarshal(one.from, one.into); err != nil {
			return err
		}
	}
	used, n := c.Answers.EvalSamples, c.Rounds.FreshSamples
	if most := task.Len(envs.Eval); n > 0 && (most == 0 || most > used) {
		fresh, err := rollout.Evaluate(ctx, sampler, task, used, n, evaluation)
		if err != nil {
			return err
		}
		scores.Fresh = &fresh
	}
	if err := t.programs(ctx, stage, sampler, task, evaluation); err != nil {
		return err
	}
	if err := save(stage, "eval_results.json", scores); err != nil {
		return err
	}
	if c.Task.Stamped {
		if err := t.drawAnswers(stage, task); err != nil {
			return err
		}
	}
	if err := trySolving(ctx, stage, task); err != nil {
		return err
	}
	var lines []string
	for _, part := range []struct {
		name   string
		scores *rl.AnswerScores
	}{
		{"Before", scores.Before}, {fmt.Sprintf("After step %d, the best", result.BestStep), scores.After},
		{"After the last step", scores.Last}, {"Unseen test problems", scores.Fresh},
	} {
		if part.scores != nil {
			lines = append(lines, part.name+": "+describe(*part.scores))
		}
	}
	return t.languageModel(stage, p, "reinforcement learning with "+c.RL.Algorithm, strings.Join(lines, "\n"), report.AnswerTable(scores.Named()))
}

// describe is an evaluation on one line, by kind of problem if the task has kinds.
func describe(s rl.AnswerScores) string {
	text := evaluate.DescribeAnswers(s)
	for _, name := range slices.Sorted(maps.Keys(s.Kinds)) {
		text += fmt.Sprintf("; %s %d/%d", name, s.Kinds[name].Correct, s.Kinds[name].N)
	}
	return text
}
