package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"rltrain/cmd/rltrain/config"
	"rltrain/envs"
	"rltrain/envs/answer"
	"rltrain/envs/math"
	"rltrain/rl/algo"
	"rltrain/rl/report"
	"rltrain/torch"
	"rltrain/torch/hub"
)

// problemStages trains gsm8k or math: on worked solutions, on the policy's own, or on both one after the other.
func (t *trainer) problemStages(ctx context.Context) error {
	c := t.config
	start := c.PretrainedModel
	if c.Mode != config.RLOnly {
		if err := t.imitateSolutions(ctx); err != nil {
			return err
		}
		start = t.stageDir(supervisedStage)
	}
	if c.Mode == config.Supervised {
		return nil
	}
	return t.reinforceProblems(ctx, start)
}

// problemTask reads the problems.
func (t *trainer) problemTask(plain bool, reward envs.Reward) (*math.Task, error) {
	c := t.config
	o := math.Options{
		Train: c.Dataset, Eval: c.EvalDataset, FewShotFile: c.FewShotDataset, FewShot: c.FewShot, HoldOut: c.EvalSamples,
		Stepwise: c.Lines(), EvalStepwise: t.evalLines(), MaxSteps: c.MaxTrajectorySteps, Calculator: c.SymCalc,
		Annotate: c.Annotate, Plain: plain, Match: answer.Match(c.AnswerMatch), Reward: reward,
	}
	if c.SystemPrompt != "" {
		text, err := os.ReadFile(c.SystemPrompt)
		if err != nil {
			return nil, c.Errorf("system_prompt", "%v", err)
		}
		if o.Instruction = strings.TrimSpace(string(text)); o.Instruction == "" {
			return nil, c.Errorf("system_prompt", "%s is empty", c.SystemPrompt)
		}
	}
	t.data.name = c.Dataset
	return math.New(c.Task, c.Seed, o)
}

// evalLines tells whether solutions are evaluated line by line.
func (t *trainer) evalLines() bool {
	c := t.config
	switch {
	case c.Mode == config.Supervised:
		return false
	case c.Replay():
		return c.EvalStepwise
	}
	return c.Lines()
}

// actionTokens is how long an action of reinforcement learning may be.
func (t *trainer) actionTokens() int {
	if t.config.Lines() {
		return t.config.MaxLineTokens
	}
	return t.config.MaxNewTokens
}

// readsText says that the policy is to be shown text instead of a conversation: left to choose, where it has no
// chat template.
func (t *trainer) readsText(policy *algo.TokenPolicy) bool {
	return t.config.PromptForm == "auto" && policy.Templates == nil
}

// shownTo is the task in the form that the policy reads.
func (t *trainer) shownTo(policy *algo.TokenPolicy, task *math.Task, reward envs.Reward) (*math.Task, error) {
	if t.readsText(policy) {
		return t.problemTask(true, reward)
	}
	return task, nil
}

// splitsOf are the parts of a task for the header, none of an endless one.
func splitsOf(task envs.Task) []report.Split {
	if task.Len(envs.Train) == 0 {
		return nil
	}
	return []report.Split{{Name: "train", Rows: task.Len(envs.Train)}, {Name: "held out", Rows: task.Len(envs.Eval)}}
}

// imitateSolutions trains on worked solutions, in the form in which the model is to write its own.
func (t *trainer) imitateSolutions(ctx context.Context) error {
	c := t.config
	task, err := t.problemTask(c.PromptForm == "short", nil)
	if err != nil {
		return err
	}
	policy, err := t.startingLanguageModel(ctx)
	if err != nil {
		return err
	}
	defer policy.Close()
	if task, err = t.shownTo(policy, task, nil); err != nil {
		return err
	}
	train, err := policy.Encode(solutions(ctx, task, envs.Train, task.Len(envs.Train)), algo.EncodeOptions{CompletionOnly: true})
	if err != nil {
		return err
	}
	held, err := policy.Encode(solutions(ctx, task, envs.Eval, min(c.EvalSamples, task.Len(envs.Eval))), algo.EncodeOptions{CompletionOnly: true})
	if err != nil {
		return err
	}
	return t.trainStage(supervisedStage, func(stage *algo.Stage) error {
		if err := t.beginChat(stage, policy, train, held); err != nil {
			return err
		}
		settings := t.tokenSFT()
		settings.Epochs, settings.MaxUpdates = c.Epochs, c.MaxSteps
		result, err := algo.TokenSFT(ctx, policy, train.Sequences, held.Sequences, settings, stage.Hooks("supervised", "update"))
		if err != nil {
			return err
		}
		if err := t.scoreSolutions(ctx, stage, policy, task); err != nil {
			return err
		}
		return t.endChat(stage, policy, result)
	})
}

// scoreSolutions answers the held-out problems greedily.
func (t *trainer) scoreSolutions(ctx context.Context, stage *algo.Stage, policy *algo.TokenPolicy, task *math.Task) error {
	sampler, err := policy.NewSampler(samplerSlots)
	if err != nil {
		return err
	}
	defer sampler.Close()
	o := t.evaluation()
	if t.evalLines() {
		o.MaxNew = t.config.MaxLineTokens
	}
	scores, err := policy.EvaluateTask(ctx, sampler, task, 0, t.config.EvalSamples, o)
	if err != nil {
		return err
	}
	if err := saveScores(stage, scores); err != nil {
		return err
	}
	return stage.Printf("After supervised training: %s", describeScores(scores))
}

// reinforceProblems improves the policy in start, or a new one on --model, by its own solutions.
func (t *trainer) reinforceProblems(ctx context.Context, start string) error {
	c := t.config
	reward, closeJudge, err := t.judge(ctx)
	if err != nil {
		return err
	}
	defer closeJudge()
	task, err := t.problemTask(c.PromptForm == "short", reward)
	if err != nil {
		return err
	}
	policy, start, err := t.policyToReinforce(ctx, start)
	if err != nil {
		return err
	}
	defer policy.Close()
	if task, err = t.shownTo(policy, task, reward); err != nil {
		return err
	}
	reference, err := t.referenceOf(ctx, policy, start)
	if err != nil {
		return err
	}
	if reference != nil {
		defer reference.Close()
	}
	if c.Replay() {
		return t.replayProblems(ctx, task, policy, reference, start)
	}
	return t.reinforceTokens(ctx, task, policy, reference, start)
}

// referenceOf is the model that the policy is held to, nil where it needs no copy of its own.
func (t *trainer) referenceOf(ctx context.Context, policy *algo.TokenPolicy, start string) (*algo.TokenPolicy, error) {
	c := t.config
	switch {
	case c.Replay() && !c.OwnReference() && c.ReinforceLoss != config.LossReinforce:
		reference, err := algo.LoadTokenPolicy(ctx, t.hub, c.ReferenceModel, "", dtypeOf(c), false)
		if err != nil {
			return nil, c.Errorf("reference_model", "%v", err)
		}
		return reference, nil
	case c.Replay() || c.KLCoef == 0 || !policy.Full():
		return nil, nil
	case start != c.Model:
		return algo.LoadTokenPolicy(ctx, t.hub, start, "", dtypeOf(c), false)
	}
	model, err := t.modelFolder(ctx)
	if err != nil {
		return nil, err
	}
	return algo.LoadTokenPolicy(ctx, t.hub, model.Dir, "", dtypeOf(c), false)
}

// judge loads the model that pays the steps; the reward is nil where there is none.
func (t *trainer) judge(ctx context.Context) (reward envs.Reward, end func(), err error) {
	c := t.config
	if c.Judge == "" {
		return nil, func() {}, nil
	}
	model, err := t.hub.Model(ctx, c.Judge, hub.Weights)
	if err != nil {
		return nil, nil, c.Errorf("judge", "%v", err)
	}
	judge, err := algo.NewJudge(model.Dir, dtypeOf(c))
	if err != nil {
		return nil, nil, c.Errorf("judge", "%v", err)
	}
	if c.JudgeReward == config.JudgeAspects {
		return t.telling(math.AspectsReward(judge, 1)), judge.Close, nil
	}
	return t.telling(math.ScoreReward(judge, c.JudgeScale)), judge.Close, nil
}

// telling prints the first failure of a reward: what failed is left out of training, and counted.
func (t *trainer) telling(reward envs.Reward) envs.Reward {
	told := false
	return func(ctx context.Context, completion envs.Completion) (float64, error) {
		value, err := reward(ctx, completion)
		if err != nil && !told {
			told = true
			err = errors.Join(err, t.console.Print("warning: the judge failed, and its turn has no reward: "+err.Error()))
		}
		return value, err
	}
}

// replayProblems learns from single turns of solutions.
func (t *trainer) replayProblems(ctx context.Context, task *math.Task, policy, reference *algo.TokenPolicy, start string) error {
	c := t.config
	return t.reinforceStage(ctx, task, policy, start, c.Algorithm+", loss "+c.ReinforceLoss, func(hooks algo.Hooks) (algo.TokenRLResult, error) {
		o := algo.TokenReplayConfig{
			Loss: c.ReinforceLoss, Steps: c.NumSteps, Episodes: c.PromptsPerStep, Draws: c.NumUpdateSteps, BatchSize: c.RLBatchSize,
			Capacity: c.BufferSize, Slots: min(samplerSlots, max(c.PromptsPerStep, c.EvalSamples)), MicroTokens: chatMicroTokens(c), Checkpoint: c.GradientCheckpointing,
			Seed: c.Seed, LearningRate: c.RLLearningRate, MaxGradNorm: c.RLMaxGradNorm, Schedule: c.RLLRSchedulerType, Warmup: c.RLWarmupRatio, Temperature: c.Temperature,
			MaxNew: t.actionTokens(), Gamma: c.Gamma, ReturnMin: c.ReturnMin, ReturnMax: c.ReturnMax, KLCoef: c.KLCoef, NLLCoef: c.NLLCoef,
			Reference: reference, ReferenceEvery: c.RefUpdateEvery, EvalEvery: c.EvalEvery, EvalSamples: c.EvalSamples, EvalMaxNew: c.MaxNewTokens,
			EvalSampling: torch.Sampling{Temperature: c.EvalTemperature},
		}
		if reference != nil {
			o.ReferenceEvery = 0
		}
		if c.EvalTemperature > 0 {
			o.EvalSampling.TopP = c.EvalTopP
		}
		if c.EvalStepwise {
			o.EvalMaxNew = c.MaxLineTokens
		}
		if c.LoadBuffer {
			o.LoadBuffer = c.BufferCache
		}
		if c.CacheBuffer {
			o.SaveBuffer = bufferTarget(c.BufferCache, c.LoadBuffer)
		}
		return algo.TokenReplay(ctx, policy, task, o, hooks)
	})
}

// bufferTarget is where the buffer is written: beside the file that it began with, which stays as it is.
func bufferTarget(path string, loaded bool) string {
	if !loaded {
		return path
	}
	ext := filepath.Ext(path)
	return strings.TrimSuffix(path, ext) + "_updated" + ext
}
