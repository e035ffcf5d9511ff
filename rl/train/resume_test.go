package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs"
	_ "github.com/rltrain/rltrain/envs/agent"
	"github.com/rltrain/rltrain/envs/agent/agenttest"
	_ "github.com/rltrain/rltrain/envs/code"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// resumable is a run that can be started any number of times.
type resumable func(ctx context.Context, t *testing.T, h run.Hooks) (policy.Policy, Result, error)

func supervised(p func(t *testing.T) policy.Policy, samples []*rl.Sample, packing int, judge func(t *testing.T, p policy.Policy) *evaluate.Plan, changes ...func(*algo.SFT, *epochs.Source)) resumable {
	return func(ctx context.Context, t *testing.T, h run.Hooks) (policy.Policy, Result, error) {
		p, sft := p(t), &algo.SFT{FeatureAlignment: 0.01}
		source := must.Get(epochs.New(samples, 3, packing, 5))(t)
		c := Config{Steps: 7, HeadRate: 3e-2, Seed: 3, Evaluate: judge(t, p),
			Optimisation: Optimisation{LearningRate: 1e-2, Schedule: "cosine", WarmupSteps: 3, WeightDecay: 0.1, MaxGradNorm: 0.5}}
		for _, change := range changes {
			change(sft, source)
		}
		result, err := launch(ctx, p, source, sft, c, h)
		return p, result, err
	}
}

func ofLabels(rewards string, change func(r *labelRun)) resumable {
	return ofLabelsOf(tinyLabel, rewards, change)
}

func ofLabelsOf(p func(t testing.TB) *policy.Classifier, rewards string, change func(r *labelRun)) resumable {
	return func(ctx context.Context, t *testing.T, h run.Hooks) (policy.Policy, Result, error) {
		r := newLabelRun(rewards)
		r.Steps, r.train, r.validation, r.BufferSize, r.BatchSize, r.MinibatchSize, r.Epochs = 7, tinyExamples(40, 1), tinyExamples(20, 2), 24, 8, 8, 2
		change(&r)
		p := p(t)
		result, err := r.on(ctx, t, p, h)
		return p, result, err
	}
}

func ofTokens(algorithm func() algo.Algorithm, p func(t testing.TB, r int) *policy.CausalLM, rank int, change func(r *tokenRun)) resumable {
	return func(ctx context.Context, t *testing.T, h run.Hooks) (policy.Policy, Result, error) {
		r := newTokenRun(algorithm)
		r.Steps, r.Schedule, r.LearningRate, r.evaluated, r.every = 7, "linear", 0.005, 5, 2
		change(&r)
		p := p(t, rank)
		result, err := r.on(ctx, t, p, h)
		return p, result, err
	}
}

// ofPrograms runs the code task; each run grades its programs again.
func ofPrograms(ctx context.Context, t *testing.T, h run.Hooks) (policy.Policy, Result, error) {
	path := filepath.Join(t.TempDir(), "numbers.jsonl")
	const row = `{"prompt":"NAME","prefix":"def f(x):\n    return ","tests":[{"call":"type(f(1))","expect":"int"},{"call":"f(2) > 1","expect":"True"}]}` + "\n"
	rows := strings.Replace(row, "NAME", "a number", 1) + strings.Replace(row, "NAME", "a large number", 1)
	must.Do(t, os.WriteFile(path, []byte(rows), 0o600))
	task, err := envs.New("code", envs.Setup{Seed: 1, Text: true, HeldOut: 1}, envs.Settings{"dataset": path})
	if err != nil {
		t.Skip(err) // there is no Python, or no sandbox
	}
	t.Cleanup(func() { _ = task.(io.Closer).Close() })
	return ofTokens(func() algo.Algorithm { return &algo.Reinforce{Start: 0.5, Decay: 0.7} }, tinyToken, 0, func(r *tokenRun) {
		r.task, r.maxNew, r.PromptsPerStep, r.SamplesPerPrompt, r.evaluated = task, 1, 1, 4, 1
	})(ctx, t, h)
}

// tinyChat is tinyToken with a chat template.
func tinyChat(t testing.TB, r int) *policy.CausalLM {
	t.Helper()
	torchtest.NoLeaks(t)
	dir := t.TempDir() + "/tiny"
	must.Do(t, policy.TinyChatModel(dir, 2, 32, 3))
	return must.Open(policy.NewCausalLM(policy.Config{Dir: dir, Full: r == 0, R: r, Alpha: 2 * float64(r), Seed: 5}))(t)
}

// agents has a program play the episodes.
func agents(t testing.TB) envs.Task {
	t.Helper()
	task := must.Get(envs.New("agent", envs.Setup{Seed: 1}, envs.Settings{"agent": must.Get(agenttest.Command())(t)}))(t)
	t.Cleanup(func() { _ = task.(io.Closer).Close() })
	return task
}

// ofAgents runs the task agent; each run starts its agents again.
func ofAgents(change func(r *tokenRun)) resumable {
	return func(ctx context.Context, t *testing.T, h run.Hooks) (policy.Policy, Result, error) {
		return ofTokens(newGRPO, tinyChat, 4, func(r *tokenRun) {
			r.task, r.maxNew, r.PromptsPerStep, r.SamplesPerPrompt, r.evaluated = agents(t), 2, 2, 4, 2
			change(r)
		})(ctx, t, h)
	}
}

// ofRecorded learns from 24 recorded sessions in groups of 4, some with two segments.
func ofRecorded(ctx context.Context, t *testing.T, h run.Hooks) (policy.Policy, Result, error) {
	path := filepath.Join(t.TempDir(), rollout.RecordedFile)
	var lines []byte
	for i := range 24 {
		reward := float64(i*i%5) / 4
		one := rollout.Recorded{Session: fmt.Sprint(i), Group: fmt.Sprint(i / 4), Temperature: 1, Reward: &reward}
		x := &one.Trajectory
		for turn := range 1 + i%2 {
			if turn > 0 {
				x.BeginSegment(5, 6)
			}
			x.AppendGiven(int32(7 + i/4))
			x.AppendSampled(int32(20+i%3), -3, -3)
			x.AppendSampled(int32(30+i%5), -4, -4)
			x.EndTurn(0)
		}
		lines = append(append(lines, must.Get(json.Marshal(one))(t)...), '\n')
	}
	must.Do(t, os.WriteFile(path, lines, 0o600))
	return ofTokens(newGRPO, tinyToken, 4, func(r *tokenRun) { r.recorded, r.SamplesPerPrompt = path, 4 })(ctx, t, h)
}

// impatient ends after step 7: four evaluations without a new best.
func impatient(ctx context.Context, t *testing.T, h run.Hooks) (policy.Policy, Result, error) {
	p, script := newTable(t, 1), scripted{scores: map[int]float64{1: 0.1, 3: 0.5, 5: 0.4}}
	c := Config{
		Steps: 9, Samples: 4, Evaluate: script.evaluation(t, p, 1), Stopping: Stopping{Patience: 4},
		Optimisation: Optimisation{LearningRate: 0.1, Schedule: "constant", MaxGradNorm: 1},
	}
	result, err := launch(ctx, p, fixed(tokenStep), newGRPO(), c, h)
	return p, result, err
}

// heard tells which episode begins.
type heard struct {
	envs.Task
	begins func(index int)
}

func (h heard) Episode(part envs.Part, index int) (envs.Env, error) {
	h.begins(index)
	return h.Task.Episode(part, index)
}

func ofReplays(a algo.Algorithm, rank int) resumable {
	return func(ctx context.Context, t *testing.T, h run.Hooks) (policy.Policy, Result, error) {
		r := newReplayRun(a)
		r.Steps, r.evaluated, r.every = 7, 5, 3
		if a.Needs().Reference {
			r.ReferenceEvery = 3
		}
		p := tinyToken(t, rank)
		result, err := r.on(ctx, t, p, h)
		return p, result, err
	}
}

// everyRun has a run of each source with each algorithm.
func everyRun() map[string]resumable {
	label := func(t *testing.T) policy.Policy { return tinyLabel(t) }
	token := func(t *testing.T) policy.Policy { return tinyToken(t, 4) }
	judgeLabels := func(t *testing.T, p policy.Policy) *evaluate.Plan {
		return must.Get(evaluate.Labels(p.(*policy.Classifier), tinyExamples(20, 2), evaluate.MetricLoss, 2, nil))(t)
	}
	judgeLoss := func(t *testing.T, p policy.Policy) *evaluate.Plan {
		return evaluate.Loss(p.(*policy.CausalLM), policy.Samples(texts(5)), 2)
	}
	scored := func(t testing.TB) *policy.Classifier { return tinyLanguageLabel(t, true) }
	lastToken := func(t testing.TB) *policy.Classifier { return tinyLanguageLabel(t, false) }
	bounds := algo.Replay{Min: 0, Max: 10}
	nothing := func(*tokenRun) {}
	runs := map[string]resumable{
		"epochs × sft of labels": supervised(label, tinyExamples(13, 1).Samples(), 0, judgeLabels),
		"epochs × sft of tokens": supervised(token, policy.Samples(texts(13)), 0, judgeLoss),
		"packed epochs × sft":    supervised(token, policy.Samples(texts(29)), 14, judgeLoss),
		"epochs × sft with noise and ranks": supervised(token, policy.Samples(texts(13)), 0, judgeLoss, func(a *algo.SFT, s *epochs.Source) {
			a.Noise = 5
			s.Rank([]float64{2, 1, 1, 1, 0, 0, 3, 3, 1, 0, 1, 2, 0})
		}),
		"labels × ppo":      ofLabels("accuracy,f1=0.5", func(*labelRun) {}),
		"labels × expected": ofLabels("calibration,f1=0.1", func(r *labelRun) { r.TargetKL = 0.002 }),
		"labels × a warning": ofLabels("expr:'0.1'", func(r *labelRun) {
			r.AllowNone = true
			r.algorithm, r.Epochs, r.MinibatchSize = &algo.Reinforce{Decay: 0.5}, 1, 0
		}),
		"labels × reinforce": ofLabels("accuracy", func(r *labelRun) { r.algorithm, r.Epochs, r.MinibatchSize = &algo.Reinforce{Decay: 0.5}, 1, 0 }),
		"labels × a2c": ofLabels("accuracy", func(r *labelRun) {
			r.algorithm, r.Epochs, r.MinibatchSize = &algo.A2C{Gamma: 1, Lambda: 1, ValueCoef: 0.5}, 1, 0
		}),
		"labels × grpo": ofLabels("accuracy", func(r *labelRun) { r.algorithm, r.LabelOptions.Samples, r.BufferSize = newGRPO(), 4, 48 }),
		"label replay × dqn": ofLabels("accuracy", func(r *labelRun) {
			r.algorithm, r.Epochs, r.replay = &algo.DQN{Temperature: 0.1}, 1, 40
		}),
		"labels × rloo":             ofLabels("accuracy", func(r *labelRun) { r.algorithm, r.LabelOptions.Samples, r.BufferSize = newRLOO(), 4, 48 }),
		"scored labels × ppo":       ofLabelsOf(scored, "accuracy", func(r *labelRun) { r.KLCoef, r.KLType = 0.1, "k3" }),
		"scored labels × reinforce": ofLabelsOf(scored, "accuracy", func(r *labelRun) { r.algorithm, r.Epochs, r.MinibatchSize = &algo.Reinforce{Decay: 0.5}, 1, 0 }),
		"last token × dqn": ofLabelsOf(lastToken, "accuracy", func(r *labelRun) {
			r.algorithm, r.Epochs, r.replay = &algo.DQN{Temperature: 0.1}, 1, 40
		}),
		"last token × sft":            supervised(func(t *testing.T) policy.Policy { return lastToken(t) }, tinyExamples(13, 1).Samples(), 0, judgeLabels),
		"tokens × reinforce":          ofTokens(func() algo.Algorithm { return &algo.Reinforce{Start: 0.5, Decay: 0.7} }, tinyToken, 0, nothing),
		"tokens × no signal":          ofTokens(func() algo.Algorithm { return &algo.Reinforce{Start: 0.5, Decay: 0.99} }, tinyToken, 0, func(r *tokenRun) { r.rewards, r.AllowNone = "expr:'0.1'", true }),
		"tokens × reinforce, a model": ofTokens(func() algo.Algorithm { return &algo.Reinforce{Baseline: "none"} }, tinyToken, 0, func(r *tokenRun) { r.rewards = "model:smalls" }),
		"tokens × grpo, process":      ofTokens(newProcess, tinyToken, 0, func(r *tokenRun) { r.rewards = "process(model=smalls,separator=a,total=last)" }),
		"tokens × greedy":             ofTokens(func() algo.Algorithm { return &algo.Reinforce{Baseline: "greedy"} }, tinyToken, 4, func(r *tokenRun) { r.greedy = true }),
		"tokens × distill":            ofTokens(func() algo.Algorithm { return &algo.Distill{Teacher: "given", Divergence: "jsd", Mix: 0.5} }, tinyToken, 4, func(r *tokenRun) { r.taught = true }),
		"tokens × distill, sampled":   ofTokens(func() algo.Algorithm { return &algo.Distill{Teacher: "given", Divergence: "sampled"} }, tinyToken, 0, func(r *tokenRun) { r.taught, r.Minibatches = true, 2 }),
		"async tokens × distill, served": ofTokens(newServedDistill, tinyToken, 4, func(r *tokenRun) {
			r.taught, r.Async, r.MaxStaleness, r.task = true, true, 2, spelling
		}),
		"tokens × sdft": ofTokens(newSDFT, tinyToken, 4, func(r *tokenRun) { r.task, r.Minibatches = worked{}, 2 }),
		"async tokens × sdpo": ofTokens(newSDPO("ema"), tinyToken, 0, func(r *tokenRun) {
			r.Minibatches, r.Async, r.MaxStaleness = 2, true, 2
		}),
		"tokens × sdpo, current weights": ofTokens(newSDPO("live"), trainedToken, 4, func(*tokenRun) {}),
		"tokens × rloo":                  ofTokens(newRLOO, tinyToken, 0, func(r *tokenRun) { r.Minibatches = 2 }),
		"tokens × ppo":                   ofTokens(newPPO, tinyToken, 0, func(r *tokenRun) { r.Epochs, r.Minibatches = 2, 2 }),
		"async tokens × rloo":            ofTokens(newRLOO, tinyToken, 0, func(r *tokenRun) { r.Async, r.MaxStaleness, r.task = true, 2, spelling }),
		"tokens × grpo, difficulty pools": ofTokens(newGRPO, tinyToken, 0, func(r *tokenRun) {
			r.task, r.Pools, r.DynamicSampling, r.SamplesPerPrompt = few{letters}, rollout.Pools{ByDifficulty: true, Floor: 0.2}, true, 3
		}),
		"async tokens × rloo, difficulty pools": ofTokens(newRLOO, tinyToken, 0, func(r *tokenRun) {
			r.task, r.Pools, r.Async, r.MaxStaleness, r.SamplesPerPrompt = few{letters}, rollout.Pools{ByDifficulty: true, Floor: 0.2}, true, 2, 3
		}),
		"servers × grpo": ofTokens(newGRPO, tinyToken, 4, func(r *tokenRun) { r.servers, r.Options.Temperature = 2, 0.8 }),
		"servers ahead × rloo": ofTokens(newRLOO, tinyToken, 4, func(r *tokenRun) {
			r.servers, r.Async, r.MaxStaleness, r.task = 2, true, 2, spelling
		}),
		"table × grpo, patience":     impatient,
		"programs × reinforce":       ofPrograms,
		"recorded × grpo":            ofRecorded,
		"agents × grpo":              ofAgents(func(*tokenRun) {}),
		"async agents × grpo":        ofAgents(func(r *tokenRun) { r.Async, r.MaxStaleness = true, 1 }),
		"replay × replay":            ofReplays(&bounds, 0),
		"replay × replay_kl":         ofReplays(&algo.ReplayKL{Replay: bounds, Coef: 0.25}, 0),
		"replay × replay_kl adapter": ofReplays(&algo.ReplayKL{Replay: bounds, Coef: 0.25}, 4),
		"replay × replay_nll":        ofReplays(&algo.ReplayNLL{Replay: bounds}, 4),
		"tokens × grpo, adaptive": ofTokens(newGRPO, tinyToken, 4, func(r *tokenRun) {
			r.Epochs, r.Minibatches, r.DynamicSampling = 2, 2, true
			r.KLCoef, r.KLType, r.KLTarget, r.KLHorizon = 0.1, "k3", 0.001, 100
		}),
		"tokens × grpo, adaptive entropy": ofTokens(newGRPO, tinyToken, 4, func(r *tokenRun) {
			r.Minibatches, r.TopEntropy = 2, 0.4
			r.EntropyControl = EntropyControl{Adaptive: true, Target: 100, Delta: 0.01, Max: 1}
		}),
		"tokens × grpo on 4 bits": ofTokens(newGRPO, quantizedToken, 4, func(r *tokenRun) { r.KLCoef, r.KLType = 0.1, "k3" }),
		"tokens × grpo, trained adapter": ofTokens(newGRPO, trainedToken, 4, func(r *tokenRun) {
			r.KLCoef, r.KLType, r.KLInReward, r.ReferenceEvery = 0.1, "k1", true, 3
		}),
		"tokens × grpo, modules to save": ofTokens(newGRPO, savedToken, 4, func(r *tokenRun) { r.KLCoef, r.KLType = 0.1, "k3" }),
		"tokens × grpo, pissa": ofTokens(newGRPO, func(t testing.TB, r int) *policy.CausalLM {
			return tinyTokenOf(t, policy.Config{R: r, Init: policy.InitPiSSA})
		}, 4, func(r *tokenRun) { r.KLCoef, r.KLType = 0.1, "k3" }),
		"tokens × grpo, dora": ofTokens(newGRPO, func(t testing.TB, r int) *policy.CausalLM {
			return tinyTokenOf(t, policy.Config{R: r, DoRA: true})
		}, 4, func(r *tokenRun) { r.KLCoef, r.KLType = 0.1, "k3" }),
		"tokens × grpo, muon":      ofTokens(newGRPO, tinyToken, 0, func(r *tokenRun) { r.Optim = OptimMuon }),
		"tokens × ppo, adamw_8bit": ofTokens(newPPO, tinyToken, 0, func(r *tokenRun) { r.Optim = OptimAdamW8 }),
		"tokens × grpo, moving reference": ofTokens(newGRPO, tinyToken, 4, func(r *tokenRun) {
			r.KLCoef, r.KLType, r.ReferenceSync = 0.1, "k3", ReferenceSync{Sync: true, Alpha: 0.6, Every: 2}
		}),
		"pairs × dpo":                              ofPairs(func() *algo.DPO { return newDPO("sigmoid", "sft") }, trainedToken, 4, false),
		"pairs × dpo, precomputed":                 ofPairs(func() *algo.DPO { return newDPO("ipo") }, tinyToken, 0, true),
		"single answers × kto":                     ofPairs(func() *algo.DPO { return newDPO("kto") }, tinyToken, 4, false),
		"units × reward model on an encoder":       ofRewards(true),
		"units × reward model on a language model": ofRewards(false),
		"tokens × dpo of own answers":              ofTokens(func() algo.Algorithm { return &algo.OnlineDPO{DPO: *newDPO("sigmoid")} }, tinyToken, 4, func(r *tokenRun) {}),
		"little memory × ppo": func(ctx context.Context, t *testing.T, h run.Hooks) (policy.Policy, Result, error) {
			ctx = context.WithValue(ctx, limits{}, memory{200, 190, true})
			return ofTokens(newPPO, tinyToken, 4, func(r *tokenRun) { r.Epochs, r.Minibatches = 2, 2 })(ctx, t, h)
		},
		"several turns × ppo": ofTokens(newPPO, tinyToken, 4, func(r *tokenRun) { r.task, r.OverlongBuffer, r.Options.Temperature = spelling, 2, 0.7 }),
	}
	for name, fields := range unlikeLlama {
		family := func(t testing.TB, r int) *policy.CausalLM { return tinyFamily(t, fields, r) }
		r := 4
		if name == "experts" { // which take no adapters
			r = 0
			runs["async tokens × grpo, experts"] = ofTokens(newGRPO, family, r, func(r *tokenRun) { r.Async, r.MaxStaleness, r.task = true, 2, spelling })
		}
		runs["tokens × grpo, "+name] = ofTokens(newGRPO, family, r, nothing)
	}
	for _, name := range []string{"gspo", "cispo", "sapo", "gmpo", "dppo", "vespo", "reinforce++", "clip_cov", "kl_cov"} {
		d, err := algo.Find(name)
		if err != nil {
			panic(err)
		}
		runs["tokens × "+name] = ofTokens(d.New, tinyToken, 0, func(r *tokenRun) { r.Minibatches = 2 })
	}
	runs["tokens × rft"] = ofTokens(func() algo.Algorithm { return &algo.RFT{MinReward: 1, Keep: "all"} }, tinyToken, 4, func(r *tokenRun) { r.Epochs, r.Minibatches = 2, 2 })
	runs["tokens × gpg"] = ofTokens(func() algo.Algorithm { return algo.New[algo.GPG]() }, tinyToken, 0, nothing)
	runs["async tokens × gspo"] = ofTokens(func() algo.Algorithm { return algo.New[algo.GSPO]() }, tinyToken, 0, func(r *tokenRun) { r.Async, r.MaxStaleness, r.task = true, 2, spelling })
	return runs
}

// TestResumedRunEqualsUninterrupted ends each pair of source and algorithm one step after each checkpoint, so that work
// is lost, and resumes with a new policy, source and algorithm. Rows, lines, result and weights must be byte-identical.
func TestResumedRunEqualsUninterrupted(t *testing.T) {
	for name, again := range everyRun() {
		t.Run(name, func(t *testing.T) { resumes(t, again, true) })
	}
}

// TestStoppedRunEqualsUninterrupted stops runs between two steps, as a user does: the next step is abandoned and leaves
// no trace. One is also stopped while rollouts of the next steps begin.
func TestStoppedRunEqualsUninterrupted(t *testing.T) {
	stops, runs := []int{1, 9, 13, 22}, everyRun() // stops at episodes
	runs["stopped within steps"] = func(ctx context.Context, t *testing.T, h run.Hooks) (policy.Policy, Result, error) {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		return ofTokens(newRLOO, tinyToken, 0, func(r *tokenRun) {
			r.Async, r.MaxStaleness, r.task = true, 2, heard{spelling, func(episode int) {
				if h.Save != nil && len(stops) > 0 && episode == stops[0] {
					stops = stops[1:]
					stop()
				}
			}}
		})(ctx, t, h)
	}
	for _, name := range []string{"labels × ppo", "tokens × grpo, adaptive", "async tokens × rloo", "replay × replay_kl adapter", "servers ahead × rloo", "stopped within steps"} {
		t.Run(name, func(t *testing.T) { resumes(t, runs[name], false) })
	}
	expect.Same(t, 0, len(stops), "stops that did not come")
}

// resumes compares a run with one in parts. A killed part ends after its last checkpoint, a stopped part at it.
func resumes(t *testing.T, again resumable, killed bool) {
	var whole recorded
	h := whole.hooks()
	h.LogEvery = 3
	p, want, err := again(t.Context(), t, h)
	must.Do(t, err)
	wantWeights := weightsOf(t, p)
	expect.Require(t, want.Version >= 5, "only %d of %d steps changed the policy", want.Version, want.Steps)

	dir, resume := t.TempDir(), ""
	var kept, parts recorded // at the checkpoint, and now
	for attempt := 0; ; attempt++ {
		expect.Require(t, attempt <= 20, "the run does not come to its end")
		ctx, cancel := context.WithCancel(t.Context())
		parts = recorded{rows: slices.Clone(kept.rows), lines: slices.Clone(kept.lines)}
		saved := false
		h := parts.hooks()
		h.LogEvery, h.Resume = 3, resume
		if killed {
			h.SaveEvery = 2
		}
		h.Row = func(row report.Row) error { parts.rows = append(parts.rows, maps.Clone(row)); return nil }
		h.Progress = func(done, total int, _ string) {
			if (saved || !killed && done%2 == 0) && done < total {
				cancel()
			}
		}
		h.Save = func(step int, write func(dir string) error) error {
			if killed && ctx.Err() != nil {
				return nil // as if killed: the last checkpoint stays
			}
			saved = true
			resume = filepath.Join(dir, fmt.Sprint(attempt, "-", step))
			kept = recorded{rows: slices.Clone(parts.rows), lines: slices.Clone(parts.lines)}
			if err := os.MkdirAll(resume, 0o755); err != nil {
				return err
			}
			return write(resume)
		}
		p, got, err := again(ctx, t, h)
		cancel()
		if errors.Is(err, run.ErrStopped) {
			continue
		}
		must.Do(t, err)
		expect.True(t, attempt >= 2, "the run was resumed %d times", attempt)
		expect.Equal(t, plain(t, want), plain(t, got), "result")
		expect.True(t, slices.EqualFunc(wantWeights, weightsOf(t, p), slices.Equal), "the weights differ")
		break
	}
	expect.Equal(t, encoded(t, whole.rows), encoded(t, parts.rows), "rows")
	expect.Equal(t, whole.lines, parts.lines, "lines")
}

// plain is a result without the line breaks that checkpoints add.
func plain(t *testing.T, r Result) string {
	t.Helper()
	line := must.Get(json.Marshal(r))(t)
	return string(line)
}

func weightsOf(t *testing.T, p run.Weights) run.Snapshot {
	t.Helper()
	return must.Get(run.TakeSnapshot(p))(t)
}
