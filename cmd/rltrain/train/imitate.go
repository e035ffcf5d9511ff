package train

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
	"github.com/rltrain/rltrain/torch"
)

// streamValidation draws the rows that are kept for validation.
const streamValidation = 100

// imitate is the supervised stage of a language model.
func (t *trainer) imitate(ctx context.Context) error {
	c := t.config
	p, err := t.startingModel(ctx, c.Pretrained(), supervisedStage)
	if err != nil {
		return err
	}
	defer p.Close()
	var task envs.Task
	var rows, held policy.TokenExamples
	packing := 0
	if c.Task.Plays() {
		if task, err = t.taskFor(ctx, p); err == nil {
			defer closeTask(task)
			if err := t.choicesFit(p, task); err != nil {
				return err
			}
			rows, held, err = t.worked(ctx, p, task)
		}
	} else {
		rows, held, err = t.records(ctx, p)
	}
	if err != nil {
		return err
	}
	if c.TextSFT != nil && c.TextSFT.Packing {
		packing = c.TextSFT.MaxLength
	}
	source, err := epochs.New(policy.Samples(rows.Sequences), c.Imitation.BatchSize, packing, c.General.Seed)
	if err != nil {
		return err
	}
	t.trial.starts(source)
	_, err = t.stage(supervisedStage, func(stage *run.Stage) error {
		if err := t.beginText(stage, p, rows, held); err != nil {
			return err
		}
		settings := train.Config{
			Steps: imitationSteps(c.Imitation, source), Optimisation: c.Imitation.Optimisation, MicroTokens: t.microTokens(tokenMicroTokens),
			OOMRetry: c.General.OOMRetry, Checkpoint: c.Tokens.GradientCheckpointing, Seed: c.General.Seed, Summary: "loss",
			Evaluate: evaluate.Loss(p, policy.Samples(held.Sequences), source.PerEpoch()), Stopping: c.Imitation.Stopping,
		}
		if settings.Evaluate != nil && c.TextSFT != nil {
			settings.Evaluate.Metric = c.TextSFT.Metric
		}
		if task == nil {
			return t.imitateTexts(ctx, stage, p, source, settings)
		}
		return t.imitateSolutions(ctx, stage, p, task, source, settings)
	})
	return err
}

// imitateTexts trains on a data set.
func (t *trainer) imitateTexts(ctx context.Context, stage *run.Stage, p *policy.CausalLM, source *epochs.Source, settings train.Config) error {
	result, err := train.Run(ctx, p, source, &algo.SFT{}, settings, stage.Hooks("supervised", "update"))
	if err != nil {
		return err
	}
	line := "Supervised training complete after " + report.Plural(result.Steps, "update")
	if result.Best != nil {
		var best policy.Validation
		if err := json.Unmarshal(result.Best, &best); err != nil {
			return err
		}
		epoch := (result.BestStep + source.PerEpoch() - 1) / source.PerEpoch()
		line += fmt.Sprintf(". Best epoch: %d (validation loss %.4f, perplexity %.3f)", epoch, best.Loss, best.Perplexity())
	}
	results := report.Table{}
	if result.Best != nil {
		var best policy.Validation
		if err := json.Unmarshal(result.Best, &best); err != nil {
			return err
		}
		results = report.Table{Headers: []string{"held-out loss", "perplexity", "% of tokens right"},
			Rows: [][]string{{fmt.Sprintf("%.4f", best.Loss), fmt.Sprintf("%.3f", best.Perplexity()), fmt.Sprintf("%.1f", 100*best.Accuracy)}}}
	}
	if err := t.tryRecords(ctx, stage); err != nil {
		return err
	}
	return t.endText(stage, p, line, results)
}

// imitateSolutions trains on worked solutions, until enough tries at held-out exercises of each kind are right where
// that is looked at, and measures how many greedy answers are in the end.
func (t *trainer) imitateSolutions(ctx context.Context, stage *run.Stage, p *policy.CausalLM, task envs.Task, source *epochs.Source, settings train.Config) error {
	sampler, err := p.NewSampler(samplerSlots)
	if err != nil {
		return err
	}
	defer sampler.Close()
	w := &warmup{t, sampler, task}
	if every := t.config.Warmup.CheckEvery; every > 0 {
		settings.Evaluate = &evaluate.Plan{Every: every, First: true, Run: w.check}
	}
	result, err := train.Run(ctx, p, source, &algo.SFT{}, settings, stage.Hooks("supervised", "update"))
	if err != nil {
		return err
	}
	scores, err := rollout.Evaluate(ctx, sampler, task, 0, t.config.Answers.EvalSamples, t.evaluation())
	if err != nil {
		return err
	}
	if err := stage.Printf("After %s: %s", report.Plural(result.Steps, "update"), describe(scores)); err != nil {
		return err
	}
	if err := save(stage, "eval_results.json", scores); err != nil {
		return err
	}
	if err := trySolving(ctx, stage, task); err != nil {
		return err
	}
	return t.endText(stage, p, "Supervised training complete after "+report.Plural(result.Steps, "update"),
		report.AnswerTable([]report.NamedScores{{Name: "After training", AnswerScores: scores}}))
}

// samplerSlots is how many answers are written at the same time.
const samplerSlots = 64

// firstLook exercises show whether a check of the warm-up is worth all of them: where not even half of the share
// that it waits for is right, the whole of it would not be.
const firstLook = 50

// warmup judges a policy that imitates worked solutions.
type warmup struct {
	*trainer
	sampler *policy.Sampler
	task    envs.Task
}

// check looks at a few answers, and where they promise enough at all. The answers are drawn as RL draws them: it learns
// from what the policy tries, not from what it holds likeliest. A policy of which half of the greedy answers were right
// has had one in twenty right when it sampled, and RL took it to none. A warm-up is over when every kind of exercise is
// answered now and then: a kind that never is has nothing to learn from.
func (w *warmup) check(ctx context.Context, updates int) (evaluate.Scores, error) {
	all, until := w.config.Answers.EvalSamples, w.config.Warmup.Until
	tries := w.evaluation()
	tries.Sampling = torch.Sampling{Temperature: 1}
	if w.config.Fresh != nil {
		tries.Sampling = w.config.Fresh.Sampling.Torch()
	}
	var scores rl.AnswerScores
	enough := false
	for _, n := range []int{min(firstLook, all), all} {
		var err error
		if scores, err = rollout.Evaluate(ctx, w.sampler, w.task, 0, n, tries); err != nil {
			return evaluate.Scores{}, err
		}
		enough = n == all && scores.Weakest() >= until
		if !enough && scores.Accuracy < until/2 {
			break
		}
	}
	return evaluate.Scores{
		Score: scores.Accuracy, Error: scores.Interval.StandardError(), Row: evaluate.AnswerRow(scores), Value: scores, Done: enough,
		Line: func(int) string {
			return fmt.Sprintf("After %s, answers drawn as RL draws them: %s", report.Plural(updates, "update"), describe(scores))
		},
	}, nil
}

// evaluation is how held-out exercises are answered: greedily, unless the replay trainer says otherwise.
func (t *trainer) evaluation() rollout.Config {
	c := t.config
	o := rollout.Config{Group: t.group, Samples: 1, MaxNew: c.Answers.MaxNewTokens, Seed: c.General.Seed, Failed: func(int, int, error) {}}
	if t.evalLines() {
		o.MaxNew = c.StepLines().MaxTokens
	}
	if c.Replay != nil && c.Replay.EvalTemperature > 0 {
		o.Sampling.Temperature, o.Sampling.TopP = c.Replay.EvalTemperature, c.Replay.EvalTopP
	}
	return o
}

// endlessUpdates is how long exercises that do not end are imitated where nothing is said.
const endlessUpdates = 1500

// mostWorked is how many worked solutions one run makes: some 4 GB of them.
const mostWorked = 1 << 22

// worked are worked solutions to imitate, and those of held-out episodes where the task has so many and no more.
func (t *trainer) worked(ctx context.Context, p *policy.CausalLM, task envs.Task) (train, held policy.TokenExamples, err error) {
	c, options := t.config, policy.EncodeOptions{CompletionOnly: true}
	n, part := task.Len(envs.Train), envs.Train
	if n == 0 {
		part = envs.Warmup
		if c.Imitation.MaxSteps == 0 {
			c.Imitation.MaxSteps = endlessUpdates
		}
		if most := mostWorked / c.Imitation.BatchSize; c.Imitation.MaxSteps > most {
			return train, held, c.Errorf("batch_size", "%d: %s have %d worked solutions each, and all are made before the first; at most %d are",
				c.Imitation.BatchSize, report.Plural(c.Imitation.MaxSteps, "update"), c.Imitation.BatchSize, mostWorked)
		}
		n = c.Imitation.MaxSteps * c.Imitation.BatchSize
	}
	if train, err = p.Encode(solutions(ctx, task, part, n), options); err != nil {
		return train, held, err
	}
	if most := task.Len(envs.Eval); most > 0 && task.Len(envs.Train) > 0 {
		held, err = p.Encode(solutions(ctx, task, envs.Eval, min(c.Answers.EvalSamples, most)), options)
	}
	return train, held, err
}

// records reads the data set's training and validation examples. Without a validation split a share of the training
// rows is kept for it.
func (t *trainer) records(ctx context.Context, p *policy.CausalLM) (train, held policy.TokenExamples, err error) {
	c := t.config
	records, err := c.Settings.(envs.RecordSource).Records(ctx, t.setup())
	if err != nil {
		return train, held, c.Blame(err)
	}
	o := policy.EncodeOptions{MaxLength: c.TextSFT.MaxLength, CompletionOnly: c.TextSFT.CompletionOnly, AssistantOnly: c.TextSFT.AssistantOnly}
	if train, err = p.Encode(chat.Examples(records.Train, chat.LanguageModelling, chat.PromptCompletion), o); err != nil {
		return train, held, err
	}
	if records.Validation != nil {
		held, err = p.Encode(chat.Examples(records.Validation, chat.LanguageModelling, chat.PromptCompletion), o)
		if err != nil || len(held.Sequences) > 0 {
			return train, held, err
		}
	}
	train.Sequences, held.Sequences = keepForValidation(train.Sequences, c.TextSFT.ValidationShare, c.General.Seed)
	if len(train.Sequences) == 0 {
		return train, held, fmt.Errorf("%s: no rows are left for training", t.dataName())
	}
	return train, held, nil
}

// keepForValidation takes a share of the rows out of those to train on; both parts keep their order.
func keepForValidation[T any](rows []T, share float64, seed uint64) (train, held []T) {
	kept := map[int]bool{}
	for _, i := range rl.Stream(seed, streamValidation).Perm(len(rows))[:int(share*float64(len(rows)))] {
		kept[i] = true
	}
	for i, row := range rows {
		if kept[i] {
			held = append(held, row)
		} else {
			train = append(train, row)
		}
	}
	return train, held
}

func (t *trainer) beginText(stage *run.Stage, p *policy.CausalLM, train, held policy.TokenExamples) error {
	if stage.Resumed() {
		return nil
	}
	what := "supervised fine-tuning with LoRA"
	if p.Full() {
		what = "supervised fine-tuning of all weights"
	}
	if err := t.begin(stage, p, what, p.BaseModel, []report.Split{{Name: dataset.Train, Rows: len(train.Sequences)}, {Name: "validation", Rows: len(held.Sequences)}}); err != nil {
		return err
	}
	if err := stage.Printf("Texts end at %s", shared.EOSNames(p)); err != nil {
		return err
	}
	if cut := train.Cut + held.Cut; cut > 0 {
		limit := p.MaxLength()
		if o := t.config.TextSFT; o != nil {
			limit = p.LengthWithin(o.MaxLength)
		}
		if err := stage.Printf("%s longer than %d tokens cut", report.Plural(cut, "example"), limit); err != nil {
			return err
		}
	}
	if null := train.Null + held.Null; null > 0 {
		if err := stage.Printf("%s with null instead of a text left out", report.Plural(null, "row")); err != nil {
			return err
		}
	}
	if dropped := train.Dropped + held.Dropped; dropped > 0 {
		if err := stage.Printf("%s without a token to train left out", report.Plural(dropped, "example")); err != nil {
			return err
		}
	}
	if o := t.config.TextSFT; o != nil && o.ValidationShare > 0 && len(held.Sequences) == 0 {
		return stage.Printf("No row is kept for validation: %g of %s is less than one; --validation-share keeps more", o.ValidationShare, report.Plural(len(train.Sequences), "row"))
	}
	return nil
}

func (t *trainer) endText(stage *run.Stage, p *policy.CausalLM, line string, results report.Table) error {
	if err := p.Save(stage.Dir()); err != nil {
		return err
	}
	if err := drawCurves(stage); err != nil {
		return err
	}
	if err := t.languageCard(stage, p, "supervised fine-tuning", results); err != nil {
		return err
	}
	if err := stage.Printf("%s", line); err != nil {
		return err
	}
	return t.saved(stage)
}
