package train

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
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

// reinforce improves the policy in start, or without one a new policy, by its own answers.
func (t *trainer) reinforce(ctx context.Context, start string, rewards *reward.Text) error {
	c := t.config
	p, err := t.startingModel(ctx, start, rlStage)
	if err != nil {
		return err
	}
	defer p.Close()
	if start == "" {
		start = c.General.Model
	}
	task, err := t.taskFor(ctx, p)
	if err != nil {
		return err
	}
	defer closeTask(task)
	if err := t.choicesFit(p, task); err != nil {
		return err
	}
	note, err := t.sift(ctx, p, task)
	if err != nil {
		return err
	}
	settings := t.learning(c.Rounds.Steps, tokenMicroTokens)
	if settings.Reference, err = t.reference(ctx); err != nil {
		return err
	}
	if other, ok := settings.Reference.(*policy.CausalLM); ok {
		defer other.Close()
	}
	teacher, err := t.teacher(ctx, p)
	if err != nil {
		return err
	}
	if teacher != nil {
		defer teacher.Close()
		settings.Teacher = teacher
	}
	way := c.RL.Algorithm
	if c.Replay != nil {
		way += ", loss " + c.Loss.Loss
	}
	_, err = t.stage(rlStage, func(stage *run.Stage) error {
		var splits []report.Split // none of an endless task
		if n := task.Len(envs.Train); n > 0 {
			splits = []report.Split{{Name: "train", Rows: n}, {Name: "held out", Rows: task.Len(envs.Eval)}}
		}
		if err := t.begin(stage, p, "reinforcement learning with "+way, start, splits); err != nil {
			return err
		}
		if err := t.showPrompt(ctx, stage, p, task); err != nil {
			return err
		}
		if note != "" && !stage.Resumed() {
			if err := stage.Printf("%s", note); err != nil {
				return err
			}
		}
		return t.learn(ctx, stage, p, task, rewards, settings)
	})
	return err
}

// learn trains, and measures what has come of it.
func (t *trainer) learn(ctx context.Context, stage *run.Stage, p *policy.CausalLM, task envs.Task, rewards *reward.Text, settings train.Config) error {
	c := t.config
	sampler, done, err := t.writer(ctx, stage, p)
	if err != nil {
		return err
	}
	defer done()
	source, err := t.source(sampler, task, rewards)
	if err != nil {
		return err
	}
	settings.Checkpoint, settings.Summary = c.Tokens.GradientCheckpointing, "reward"
	settings.Longest = c.LongestAnswer()
	if c.Replay != nil {
		settings.MinibatchSize, settings.Temperature = c.Replay.BatchSize, c.Replay.Temperature
		settings.Longest = c.ActionTokens()
		if settings.Reference == nil {
			settings.ReferenceEvery = c.Replay.RefUpdateEvery
		}
	} else {
		settings.Samples, settings.Temperature = c.Fresh.SamplesPerPrompt, c.Fresh.Temperature
	}
	if c.Minibatches != nil {
		settings.Minibatches = c.Minibatches.Minibatches
	}
	evaluation := t.evaluation()
	evaluation.Rewards = rewards
	settings.Evaluate = evaluate.Answers(sampler, task, c.Answers.EvalSamples, c.Rounds.EvalEvery, evaluation)
	if metric := c.Rounds.Metric; metric != "auto" {
		settings.Evaluate.Metric = metric
	}
	result, err := train.Run(ctx, p, source, c.Learning, settings, stage.Hooks(c.RL.Algorithm, "step"))
	if err != nil {
		return err
	}
	var scores report.AnswerResults
	for _, one := range []struct {
		from json.RawMessage
		into **rl.AnswerScores
	}{{result.Before, &scores.Before}, {result.Best, &scores.After}, {result.Last, &scores.Last}} {
		if err := json.Unmarshal(one.from, one.into); err != nil {
			return err
		}
	}
	if scores.Fresh, err = t.fresh(ctx, sampler, task, evaluation); err != nil {
		return err
	}
	programs, err := t.programs(ctx, sampler, task, evaluation)
	if err != nil {
		return err
	}
	return t.endReinforcement(ctx, stage, p, task, result.BestStep, scores, programs)
}

// writer is what writes the answers: servers, or this process.
func (t *trainer) writer(ctx context.Context, stage *run.Stage, p *policy.CausalLM) (w rollout.Writer, done func(), err error) {
	f := t.config.Fresh
	if f == nil || len(f.Remote.URLs) == 0 {
		sampler, err := p.NewSampler(t.slots())
		if err != nil {
			return nil, nil, err
		}
		return sampler, sampler.Close, nil
	}
	servers, err := remote.New(ctx, p, remote.Config{
		Options: f.Remote, Key: os.Getenv("ROLLOUT_API_KEY"), Temperature: f.Temperature, Positions: t.config.LongestAnswer() + 1, Group: t.group,
		Warn: func(format string, args ...any) { _ = stage.Printf(format, args...) }, // an error comes again with the next line
	})
	if err != nil {
		return nil, nil, t.config.Errorf("rollout_url", "%v", err)
	}
	return servers, servers.Close, stage.Printf("Answers are written by %s, which sample this policy", strings.Join(f.Remote.URLs, ", "))
}

// slots is how many answers are written at the same time.
func (t *trainer) slots() int {
	c := t.config
	if c.Fresh != nil {
		return c.Fresh.NumGenerators * c.Fresh.SamplesPerPrompt
	}
	return min(samplerSlots, max(c.Replay.PromptsPerStep, c.Answers.EvalSamples))
}

// source is what the policy learns from.
func (t *trainer) source(sampler rollout.Writer, task envs.Task, rewards *reward.Text) (train.Source, error) {
	c := t.config
	if c.Replay == nil {
		return rollout.NewTokens(sampler, task, rollout.TokensConfig{
			Options: c.Fresh.Options, Steps: c.Rounds.Steps, MaxNew: c.ActionTokens(), MaxTotal: c.LongestAnswer(), Greedy: c.Greedy(),
			Rewards: rewards, Seed: c.General.Seed, Verbose: c.Fresh.Verbose, Now: time.Now, Group: t.group,
		})
	}
	o := rollout.ReplayConfig{ReplayOptions: c.Replay.ReplayOptions, MaxNew: c.ActionTokens(), Rewards: rewards, Seed: c.General.Seed, Now: time.Now, Group: t.group}
	if c.Replay.LoadBuffer {
		o.Load = c.Replay.BufferCache
	}
	if c.Replay.CacheBuffer {
		o.Save = bufferTarget(c.Replay.BufferCache, c.Replay.LoadBuffer)
	}
	return rollout.NewReplay(sampler, task, o)
}

// bufferTarget is where the buffer is written: beside the file that it began with, which stays as it is.
func bufferTarget(path string, loaded bool) string {
	if !loaded {
		return path
	}
	ext := filepath.Ext(path)
	return strings.TrimSuffix(path, ext) + "_updated" + ext
}

// reference is another model that the policy is held to; nil where it is held to what it was.
func (t *trainer) reference(ctx context.Context) (policy.Policy, error) {
	c := t.config
	if c.Replay == nil || c.Replay.ReferenceModel == "" || c.Replay.ReferenceModel == c.General.Model || c.Loss.Loss == config.LossReinforce {
		return nil, nil
	}
	p, err := policy.LoadCausalLM(ctx, t.hub, c.Replay.ReferenceModel, "", t.dtype(), false)
	if err != nil {
		return nil, c.Errorf("reference_model", "%v", err)
	}
	return p, nil
}

// teacher is the model that the policy learns to be like; nil where the algorithm has none.
func (t *trainer) teacher(ctx context.Context, p *policy.CausalLM) (*policy.CausalLM, error) {
	distill, ok := t.config.Learning.(*algo.Distill)
	if !ok {
		return nil, nil
	}
	teacher, err := policy.LoadCausalLM(ctx, t.hub, distill.Teacher, "", t.dtype(), false)
	if err != nil {
		return nil, t.config.Errorf("teacher", "%v", err)
	}
	err = p.SameTokens(teacher)
	if own, its := p.MaxLength(), teacher.MaxLength(); err == nil && its < own {
		err = fmt.Errorf("%s reads %d tokens, and the policy may write up to %d", distill.Teacher, its, own)
	}
	if err != nil {
		teacher.Close()
		return nil, t.config.Errorf("teacher", "%v", err)
	}
	return teacher, nil
}

// sift leaves out training prompts that leave the policy no room for a token, and says how many there were.
func (t *trainer) sift(ctx context.Context, p *policy.CausalLM, task envs.Task) (note string, err error) {
	filter, ok := task.(envs.PromptFilter)
	if !ok {
		return "", nil
	}
	all := task.Len(envs.Train)
	dropped, err := filter.FilterPrompts(func(episode envs.Env) (bool, error) {
		shown, err := episode.Reset(ctx)
		if err != nil {
			return false, err
		}
		ids, err := p.Observe(shown)
		return len(ids)+t.config.ActionTokens() <= p.MaxLength(), err
	})
	if err != nil || dropped == 0 {
		return "", err
	}
	hint := ""
	if shots := t.config.Text("few_shot"); shots != "" && shots != "0" {
		hint = "; give fewer worked examples in the prompt, as with --few-shot 0"
	}
	note = fmt.Sprintf("%d of %d training prompts leave no room for an answer of %d tokens in the model's %d positions", dropped, all, t.config.ActionTokens(), p.MaxLength())
	if dropped == all {
		return "", fmt.Errorf("%s%s", note, hint)
	}
	return "warning: " + note + ", and are left out" + hint, nil
}

// fresh judges the kept weights by episodes that the run has not used; nil where the task has none left.
func (t *trainer) fresh(ctx context.Context, sampler rollout.Writer, task envs.Task, evaluation rollout.Config) (*rl.AnswerScores, error) {
	from, n := t.config.Answers.EvalSamples, t.config.Rounds.FreshSamples
	if most := task.Len(envs.Eval); n == 0 || most > 0 && most <= from {
		return nil, nil
	}
	scores, err := rollout.Evaluate(ctx, sampler, task, from, n, evaluation)
	return &scores, err
}

func (t *trainer) endReinforcement(ctx context.Context, stage *run.Stage, p *policy.CausalLM, task envs.Task, best int, scores report.AnswerResults, programs []programResult) error {
	if err := p.Save(stage.Dir()); err != nil {
		return err
	}
	if err := save(stage, "eval_results.json", scores); err != nil {
		return err
	}
	if err := drawCurves(stage); err != nil {
		return err
	}
	if programs != nil {
		if err := savePrograms(stage, programs); err != nil {
			return err
		}
	}
	if t.config.Task.Stamped {
		if err := t.drawWriting(ctx, stage, task); err != nil {
			return err
		}
	}
	if err := t.languageCard(stage, p, "reinforcement learning with "+t.config.RL.Algorithm, report.AnswerTable(scores.Named())); err != nil {
		return err
	}
	if err := trySolving(ctx, stage, task); err != nil {
		return err
	}
	for _, part := range []struct {
		name   string
		scores *rl.AnswerScores
	}{
		{"Before", scores.Before}, {fmt.Sprintf("After step %d, the best", best), scores.After},
		{"After the last step", scores.Last}, {"On exercises that the run has not used", scores.Fresh},
	} {
		if part.scores == nil {
			continue
		}
		if err := stage.Printf("%s: %s", part.name, describe(*part.scores)); err != nil {
			return err
		}
	}
	return t.saved(stage)
}

// describe is an evaluation on one line, by kind of exercise where the task tells kinds.
func describe(s rl.AnswerScores) string {
	reward := ""
	if s.Reward != nil {
		if !s.Judged() {
			return evaluate.DescribeAnswers(s)
		}
		reward = fmt.Sprintf("mean reward %.4f, ", *s.Reward)
	}
	text := reward + fmt.Sprintf("%.1f %% of %d held-out answers right [%.1f, %.1f], %.1f %% in the form asked for",
		100*s.Accuracy, s.N, 100*s.Interval[0], 100*s.Interval[1], 100*s.FormatRate)
	for _, name := range slices.Sorted(maps.Keys(s.Kinds)) {
		text += fmt.Sprintf("; %s %d/%d", name, s.Kinds[name].Correct, s.Kinds[name].N)
	}
	return text
}
