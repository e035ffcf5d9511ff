package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"rltrain/cmd/rltrain/config"
	"rltrain/envs"
	"rltrain/envs/chat"
	"rltrain/envs/digits"
	"rltrain/rl"
	"rltrain/rl/algo"
	"rltrain/rl/report"
	"rltrain/torch"
)

// beforeAndAfter is logs/eval_results.json of a reinforcement learning stage.
type beforeAndAfter struct {
	Before rl.AnswerScores `json:"before"`
	After  rl.AnswerScores `json:"after"` // the best evaluation, whose weights are kept: it is chosen by these very episodes
	Last   rl.AnswerScores `json:"last"`  // after the last step
	// Fresh is of the kept weights on episodes that the run has not used; nil where the task has none left.
	Fresh *rl.AnswerScores `json:"fresh,omitempty"`
}

// freshSamples is how many unused episodes the kept weights are judged by in the end.
const freshSamples = 1000

// exerciseStages trains sum_digits, reverse_digits or a task that the program was built with: worked solutions until
// the policy answers often enough to learn from its own answers, then those.
func (t *trainer) exerciseStages(ctx context.Context) error {
	c := t.config
	task, err := t.exerciseTask(c.PromptForm == "short")
	if err != nil {
		return err
	}
	if c.Mode != config.Supervised {
		if err := t.tokenRL().Check(); err != nil { // not only after the warm-up
			return err
		}
	}
	start := c.PretrainedModel
	if c.Mode != config.RLOnly {
		if _, err := solution(ctx, task, envs.Warmup, 0); err != nil {
			return c.Errorf("mode", "%s: %v", c.Mode, err)
		}
		if err := t.warmUp(ctx, task); err != nil {
			return err
		}
		start = t.stageDir(supervisedStage)
	}
	if c.Mode == config.Supervised {
		return nil
	}
	return t.reinforceExercises(ctx, task, start)
}

func (t *trainer) exerciseTask(short bool) (envs.Task, error) {
	c := t.config
	if c.Own() {
		return ownTask(c)
	}
	return digits.New(c.Task, c.Seed, digits.Options{Count: c.DigitsCount, Max: c.DigitsMax, RequireTag: c.RequireTag, Short: short})
}

// exercisesShownTo is the task in the form that the policy reads.
func (t *trainer) exercisesShownTo(policy *algo.TokenPolicy, task envs.Task) (envs.Task, error) {
	if t.readsText(policy) {
		return t.exerciseTask(true)
	}
	return task, nil
}

func ownTask(c *config.Config) (envs.Task, error) {
	options := envs.Settings{}
	for _, option := range c.TaskOptions {
		name, value, ok := strings.Cut(option, "=")
		if !ok {
			return nil, c.Errorf("task_options", "%.80q is not NAME=VALUE", option)
		}
		options[name] = value
	}
	task, err := envs.New(c.Task, c.Seed, options)
	if err != nil {
		return nil, c.Errorf("task_options", "%v", err)
	}
	if n := task.Len(envs.Eval); n > 0 && n < c.EvalSamples {
		return nil, c.Errorf("eval_samples", "%d: task %s has %d episodes to be judged by", c.EvalSamples, c.Task, n)
	}
	return task, nil
}

// evaluation answers held-out exercises greedily.
func (t *trainer) evaluation() algo.RolloutConfig {
	return algo.RolloutConfig{Samples: 1, MaxNew: t.config.MaxNewTokens, Seed: t.config.Seed}
}

// tries are answers as RL draws them: it learns from what the policy tries, not from what it holds likeliest. A policy
// of which half of the greedy answers were right has had one in twenty right when it sampled, and RL took it to none.
func (t *trainer) tries() algo.RolloutConfig {
	c := t.evaluation()
	c.Sampling = torch.Sampling{Temperature: t.config.Temperature}
	return c
}

// samplerSlots is how many answers are written at the same time.
const samplerSlots = 64

// firstLook exercises show whether a check of the warm-up is worth all of them: where not even half of the share
// that it waits for is right, the whole of it would not be.
const firstLook = 50

// warmUp trains on worked solutions until enough tries at held-out exercises of each kind are right.
func (t *trainer) warmUp(ctx context.Context, task envs.Task) error {
	c := t.config
	policy, err := t.startingLanguageModel(ctx)
	if err != nil {
		return err
	}
	defer policy.Close()
	if task, err = t.exercisesShownTo(policy, task); err != nil {
		return err
	}
	return t.trainStage(supervisedStage, func(stage *algo.Stage) error {
		train, err := policy.Encode(solutions(ctx, task, envs.Warmup, c.MaxSteps*c.BatchSize), algo.EncodeOptions{CompletionOnly: true})
		if err != nil {
			return err
		}
		t.data.name = "worked solutions"
		if err := t.beginChat(stage, policy, train, algo.TokenExamples{}); err != nil {
			return err
		}
		sampler, err := policy.NewSampler(samplerSlots)
		if err != nil {
			return err
		}
		defer sampler.Close()
		check := func(ctx context.Context, updates int) (bool, error) {
			if err := sampler.Refresh(); err != nil {
				return false, err
			}
			for _, n := range []int{min(firstLook, c.EvalSamples), c.EvalSamples} {
				tried, err := policy.TryTask(ctx, sampler, task, 0, n, t.tries())
				if err != nil {
					return false, err
				}
				enough := tried.Weakest() >= c.WarmupUntil
				if n == c.EvalSamples || !enough && tried.Accuracy < c.WarmupUntil/2 {
					return enough, stage.Printf("After %d updates, answers drawn as RL draws them: %s", updates, describeScores(tried))
				}
			}
			return false, nil
		}
		settings := t.tokenSFT()
		settings.Epochs, settings.Check, settings.CheckEvery = 1, check, c.WarmupCheckEvery
		result, err := algo.TokenSFT(ctx, policy, train.Sequences, nil, settings, stage.Hooks("supervised", "update"))
		if err != nil {
			return err
		}
		if err := sampler.Refresh(); err != nil {
			return err
		}
		scores, err := policy.EvaluateTask(ctx, sampler, task, 0, c.EvalSamples, t.evaluation())
		if err != nil {
			return err
		}
		if err := saveScores(stage, scores); err != nil {
			return err
		}
		return t.endChat(stage, policy, result)
	})
}

// solutions are the first n worked exercises of a part.
func solutions(ctx context.Context, task envs.Task, part envs.Part, n int) iter.Seq2[chat.Example, error] {
	return func(yield func(chat.Example, error) bool) {
		for i := range n {
			e, err := solution(ctx, task, part, i)
			if !yield(e, err) {
				return
			}
		}
	}
}

func solution(ctx context.Context, task envs.Task, part envs.Part, i int) (chat.Example, error) {
	e := chat.Example{File: "exercise", Line: i + 1, Format: chat.PromptCompletion}
	episode, err := task.Episode(part, i)
	if err != nil {
		return e, err
	}
	shown, err := episode.Reset(ctx)
	if err != nil {
		return e, err
	}
	worked, ok := episode.(envs.Worked)
	if !ok {
		return e, errors.New("the task has no worked solutions to imitate; choose --mode rl_only")
	}
	answer := worked.Solution()
	if shown.Messages == nil {
		e.Prompt.Text, e.Completion.Text = shown.Text, answer
		return e, nil
	}
	e.Prompt.Messages = algo.Conversation(shown.Messages)
	e.Completion.Messages = algo.Conversation([]envs.Message{{Role: envs.RoleAssistant, Content: answer}})
	return e, nil
}

// saveScores writes the evaluation of a stage.
func saveScores(stage *algo.Stage, scores any) error {
	path, err := stage.File("logs", "eval_results.json")
	if err != nil {
		return err
	}
	return rl.SaveJSON(path, scores)
}

// describeScores is an evaluation on one line.
func describeScores(s rl.AnswerScores) string {
	text := fmt.Sprintf("%.1f %% of %d held-out answers right [%.1f, %.1f], %.1f %% in the form asked for",
		100*s.Accuracy, s.N, 100*s.Interval[0], 100*s.Interval[1], 100*s.FormatRate)
	for _, name := range slices.Sorted(maps.Keys(s.Kinds)) {
		text += fmt.Sprintf("; %s %d/%d", name, s.Kinds[name].Correct, s.Kinds[name].N)
	}
	return text
}

// reinforceExercises improves the policy in start, or without one a new policy, by its own answers.
func (t *trainer) reinforceExercises(ctx context.Context, task envs.Task, start string) error {
	policy, start, err := t.policyToReinforce(ctx, start)
	if err != nil {
		return err
	}
	defer policy.Close()
	if task, err = t.exercisesShownTo(policy, task); err != nil {
		return err
	}
	reference, err := t.referenceOf(ctx, policy, start)
	if err != nil {
		return err
	}
	if reference != nil {
		defer reference.Close()
	}
	t.data.name = "exercises of " + t.config.Task
	return t.reinforceTokens(ctx, task, policy, reference, start)
}

// policyToReinforce loads the policy in start, or without one makes a new policy, and says what it is called.
func (t *trainer) policyToReinforce(ctx context.Context, start string) (policy *algo.TokenPolicy, name string, err error) {
	if start == "" {
		policy, err = t.startingLanguageModel(ctx)
		return policy, t.config.Model, err
	}
	policy, err = t.trainedLanguageModel(ctx, start, rlStage)
	return policy, start, err
}

// reinforceTokens improves a policy, which is called start, by its own answers.
func (t *trainer) reinforceTokens(ctx context.Context, task envs.Task, policy, reference *algo.TokenPolicy, start string) error {
	return t.reinforceStage(ctx, task, policy, start, t.config.Algorithm, func(hooks algo.Hooks) (algo.TokenRLResult, error) {
		settings := t.tokenRL()
		settings.Reference = reference
		return algo.TokenRL(ctx, policy, task, settings, hooks)
	})
}

// reinforceStage runs the RL stage of a policy, which is called start, by a way of learning.
func (t *trainer) reinforceStage(ctx context.Context, task envs.Task, policy *algo.TokenPolicy, start, way string, learn func(hooks algo.Hooks) (algo.TokenRLResult, error)) error {
	c := t.config
	return t.trainStage(rlStage, func(stage *algo.Stage) error {
		if !stage.Resumed() {
			total, trainable := policy.Parameters()
			header := report.Header{
				Task: c.Task, Stage: "reinforcement learning with " + way, Model: start, Total: total, Trainable: trainable,
				Device: "cpu", Threads: torch.Threads(), Data: t.data.name, Output: stage.Dir(), Splits: splitsOf(task),
			}
			if err := stage.Printf("%s", header.String()); err != nil {
				return err
			}
		}
		result, err := learn(stage.Hooks(c.Algorithm, "step"))
		if err != nil {
			return err
		}
		fresh, err := t.evaluateFresh(ctx, task, policy)
		if err != nil {
			return err
		}
		return t.endReinforcement(stage, policy, result, fresh)
	})
}

// tokenRL is what reinforcement learning is to do, but for the reference policy.
func (t *trainer) tokenRL() algo.TokenRLConfig {
	c := t.config
	a := algo.TokenRLConfig{
		Algorithm: c.Algorithm, Steps: c.NumSteps, PromptsPerStep: c.PromptsPerStep, SamplesPerPrompt: c.SamplesPerPrompt,
		Generators: c.NumGenerators, LearningRate: c.RLLearningRate, MaxGradNorm: c.RLMaxGradNorm,
		Schedule: c.RLLRSchedulerType, Warmup: c.RLWarmupRatio,
		Temperature: c.Temperature, MaxNew: t.actionTokens(), EntropyCoef: c.EntropyCoef,
		KLCoef: c.KLCoef, KLKind: rl.KLKind(c.KLType), KLInReward: c.KLInReward, KLTarget: c.KLTarget,
		Timeout: time.Duration(c.StepTimeout * float64(time.Second)), Async: c.Async,
		MaskOverlong: c.MaskOverlong, OverlongBuffer: c.OverlongBuffer, DynamicSampling: c.DynamicSampling,
		MicroTokens: chatMicroTokens(c), Checkpoint: c.GradientCheckpointing, EvalEvery: c.EvalEvery, EvalSamples: c.EvalSamples, Verbose: c.Verbose, Seed: c.Seed,
	}
	// What means nothing to this algorithm is left out.
	for name, take := range map[string]func(){
		"kl_horizon":      func() { a.KLHorizon = c.KLHorizon },
		"max_staleness":   func() { a.MaxStaleness = c.MaxStaleness },
		"baseline":        func() { a.Baseline = rl.Baseline(c.Baseline) },
		"baseline_start":  func() { a.MovingStart, a.MovingDecay = c.BaselineStart, c.BaselineDecay },
		"advantage_scale": func() { a.Scale = rl.Scale(known(c.AdvantageScale)) },
		"reduction":       func() { a.Reduction = known(c.Reduction) },
		"clip_low": func() {
			a.ClipLow, a.ClipHigh, a.UpdateEpochs, a.Minibatches, a.TargetKL = c.ClipLow, c.ClipHigh, c.UpdateEpochs, c.Minibatches, c.TargetKL
		},
		"value_coef": func() {
			a.Gamma, a.Lambda, a.ValueRate, a.ValueClip, a.ValueCoef = c.Gamma, c.GAELambda, c.ValueLearningRate, c.ValueClip, c.ValueCoef
		},
	} {
		if c.Applies(name) {
			take()
		}
	}
	return a
}

// evaluateFresh judges a policy by episodes that the run has not used; nil where the task has none left.
func (t *trainer) evaluateFresh(ctx context.Context, task envs.Task, policy *algo.TokenPolicy) (*rl.AnswerScores, error) {
	c := t.config
	if n := task.Len(envs.Eval); n > 0 && n <= c.EvalSamples || c.Task == config.GSM8K || c.Task == config.MATH {
		return nil, nil
	}
	sampler, err := policy.NewSampler(samplerSlots)
	if err != nil {
		return nil, err
	}
	defer sampler.Close()
	scores, err := policy.EvaluateTask(ctx, sampler, task, c.EvalSamples, freshSamples, t.evaluation())
	return &scores, err
}

func (t *trainer) endReinforcement(stage *algo.Stage, policy *algo.TokenPolicy, result algo.TokenRLResult, fresh *rl.AnswerScores) error {
	dir := stage.Dir()
	if err := policy.Save(dir); err != nil {
		return err
	}
	if err := saveScores(stage, beforeAndAfter{result.Before, result.Best, result.Last, fresh}); err != nil {
		return err
	}
	if err := drawCurves(stage); err != nil {
		return err
	}
	for _, part := range []struct {
		name   string
		scores rl.AnswerScores
	}{{"Before", result.Before}, {fmt.Sprintf("After step %d, the best", result.BestStep), result.Best}} {
		if err := stage.Printf("%s: %s", part.name, describeScores(part.scores)); err != nil {
			return err
		}
	}
	if fresh != nil {
		if err := stage.Printf("On episodes that the run has not used: %s", describeScores(*fresh)); err != nil {
			return err
		}
	}
	return t.console.Print("Saved in " + dir)
}

// known is the name of a choice, "" for the algorithm's own.
func known(choice string) string {
	if choice == "auto" {
		return ""
	}
	return choice
}
