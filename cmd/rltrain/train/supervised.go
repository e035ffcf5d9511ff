package train

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"

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

// supervise is the supervised stage of a language model: on the rows of a data set, or on a task's demonstrations.
func (t *trainer) supervise(ctx context.Context) error {
	c := t.config
	p, err := t.startingModel(ctx, c.Pretrained(), supervisedStage)
	if err != nil {
		return err
	}
	defer p.Close()
	w := &work{
		stage: supervisedStage, what: "supervised fine-tuning with LoRA", from: p.BaseModel,
		label: "supervised", unit: "update",
	}
	w.algorithm = t.sft()
	defer w.close()
	learned, err := t.trained(ctx, w, p, c.Pretrained())
	if err != nil {
		return err
	}
	if p.Full() {
		w.what = "supervised fine-tuning of all weights"
	}
	var task envs.Task
	var rows, held policy.TokenExamples
	if c.Task.Plays() {
		if task, err = t.taskFor(ctx, p); err != nil {
			return err
		}
		defer closeTask(task)
		rows, held, err = t.demonstrations(ctx, p, task)
	} else {
		rows, held, err = t.records(ctx, p)
		err = t.suggestTask(ctx, err)
	}
	if err != nil {
		return err
	}
	source, err := t.epochs(rows.Sequences)
	if err != nil {
		return err
	}
	for _, s := range rows.Sequences {
		w.longest = max(w.longest, len(s.IDs))
	}
	w.source, w.splits = source, []report.Split{{Name: dataset.Train, Rows: len(rows.Sequences)}, {Name: "validation", Rows: len(held.Sequences)}}
	t.noteRows(w, p, rows, held)
	if c.TextSFT != nil && c.TextSFT.ShowExample {
		if err := t.showExample(p, rows.Sequences[0]); err != nil {
			return err
		}
	}
	w.settings = t.settings(updates(c.Supervised.Epochs, c.Supervised.MaxSteps, source.PerEpoch()), c.Supervised.Optimisation, c.Supervised.Stopping, tokenMicroTokens, "loss")
	w.settings.Checkpointing = c.Tokens.Checkpointing
	every := source.PerEpoch()
	if c.TextSFT != nil && c.TextSFT.EvalEvery > 0 {
		every = c.TextSFT.EvalEvery
	}
	w.settings.Evaluate = evaluate.Loss(learned, policy.Samples(held.Sequences), every)
	if w.settings.Evaluate != nil && c.TextSFT != nil {
		w.settings.Evaluate.Metric = c.TextSFT.Metric
	}
	if task != nil {
		t.demonstrate(ctx, w, p, task)
	} else {
		w.finish = func(ctx context.Context, stage *run.Stage, result train.Result) error {
			return t.finishTexts(ctx, stage, p, source.PerEpoch(), result)
		}
	}
	_, err = t.learn(ctx, w)
	return err
}

// epochs is the source of the sequences of a data set.
func (t *trainer) epochs(sequences []policy.Sequence) (*epochs.Source, error) {
	c, packing := t.config, 0
	if c.TextSFT != nil && c.TextSFT.Packing {
		packing = c.TextSFT.MaxLength
	}
	source, err := epochs.New(policy.Samples(sequences), c.Supervised.BatchSize, packing, c.General.Seed)
	if err == nil && c.TextSFT != nil && c.TextSFT.Curriculum != "" {
		ranks := make([]float64, len(sequences))
		for i, s := range sequences {
			ranks[i] = s.Rank
		}
		source.Rank(ranks)
	}
	return source, err
}

// sft is the loss of the supervised stage.
func (t *trainer) sft() *algo.SFT {
	a := &algo.SFT{}
	if o := t.config.TextSFT; o != nil {
		a.Dynamic, a.Smoothing, a.Noise = o.Loss == "dft", o.Smoothing, o.Noise
	}
	return a
}

// noteEnds says where texts end.
func noteEnds(w *work, p *policy.CausalLM) {
	w.note("End tokens: " + shared.EOSNames(p))
	if added := p.AddedEOS(); len(added) > 0 {
		w.note(fmt.Sprintf("warning: %s is no end of a text in the model's files; rltrain stops there and adds it to generation_config.json of what it saves", shared.TokenNames(p, added, "")))
	}
}

// noteRows says where texts end, and which rows are not trained on as they are.
func (t *trainer) noteRows(w *work, p *policy.CausalLM, rows, held policy.TokenExamples) {
	o := t.config.TextSFT
	noteEnds(w, p)
	w.count(rows.Shortened+held.Shortened, "prompt", "without the thought that the chat template opens: the completion does not begin with one")
	w.count(rows.Untold+held.Untold, "row", "with tools that the chat template does not read, so the model is not told of them; pass --chat-template FILE to change that")
	noteTrained(w, rows)
	noteBad(w, &rows.Bad, &held.Bad)
	if n := rows.Empty + held.Empty; n > 0 {
		w.note(fmt.Sprintf("warning: check the data: %s with an empty response, which teaches the model to say nothing", report.Plural(n, "example")))
	}
	noteShared(w, rows.Sequences, held.Sequences)
	limit := p.MaxLength()
	if o != nil {
		limit = p.LimitLength(o.MaxLength)
	}
	w.count(rows.Cut+held.Cut, "example", fmt.Sprintf("truncated to %d tokens", limit))
	w.count(rows.Null+held.Null, "row", "skipped: null instead of a text")
	w.count(rows.Dropped+held.Dropped, "example", "skipped: no token to train on")
	if o != nil && o.ValidationShare > 0 && len(held.Sequences) == 0 {
		w.note(fmt.Sprintf("No validation rows: --validation-share %g of %s is less than one row; raise it to get some", o.ValidationShare, report.Plural(len(rows.Sequences), "row")))
	}
}

// finishTexts says how a model that was trained on texts does on the validation rows.
func (t *trainer) finishTexts(ctx context.Context, stage *run.Stage, p *policy.CausalLM, perEpoch int, result train.Result) error {
	line, results := "Supervised training complete after "+report.Plural(result.Steps, "update"), report.Table{}
	if result.Best != nil {
		var best policy.Validation
		if err := json.Unmarshal(result.Best, &best); err != nil {
			return err
		}
		epoch := (result.BestStep + perEpoch - 1) / perEpoch
		line += fmt.Sprintf(". Best epoch: %d (validation loss %.4f, perplexity %.3f)", epoch, best.Loss, best.Perplexity())
		accuracy := fmt.Sprintf("%.1f", 100*best.Accuracy)
		if best.Partial {
			accuracy = "unknown"
		}
		results = report.Table{Headers: []string{"held-out loss", "perplexity", "token accuracy %"},
			Rows: [][]string{{fmt.Sprintf("%.4f", best.Loss), fmt.Sprintf("%.3f", best.Perplexity()), accuracy}}}
	}
	if err := t.tryRecords(ctx, stage, chat.LanguageModelling, chat.PromptCompletion); err != nil {
		return err
	}
	return t.languageModel(stage, p, "supervised fine-tuning", line, results)
}

// samplerSlots is how many completions are sampled at the same time.
const samplerSlots = 64

// demonstrate has a stage train on demonstrations until enough of the sampled answers to held-out problems of each kind
// are correct, if that is checked, and evaluate greedy answers in the end.
func (t *trainer) demonstrate(ctx context.Context, w *work, p *policy.CausalLM, task envs.Task) {
	c := t.config
	var sampler rollout.Generator
	w.open = func(stage *run.Stage) (err error) {
		if sampler, err = t.sampler(ctx, w, stage, p, samplerSlots); err != nil {
			return err
		}
		if every := c.Warmup.CheckEvery; every > 0 {
			w.settings.Evaluate = &evaluate.Plan{Every: every, First: true, Run: (&warmup{t, sampler, task}).check}
		}
		return nil
	}
	w.finish = func(ctx context.Context, stage *run.Stage, result train.Result) error {
		scores, err := rollout.Evaluate(ctx, sampler, task, 0, c.Answers.EvalSamples, t.evaluation())
		if err != nil {
			return err
		}
		after := report.Plural(result.Steps, "update")
		if err := stage.Printf("After %s: %s", after, describe(scores)); err != nil {
			return err
		}
		if err := save(stage, "eval_results.json", scores); err != nil {
			return err
		}
		if err := trySolving(ctx, stage, task); err != nil {
			return err
		}
		return t.languageModel(stage, p, "supervised fine-tuning", "Supervised training complete after "+after,
			report.AnswerTable([]report.NamedScores{{Name: "After training", AnswerScores: scores}}))
	}
}

// firstLook problems show whether a check of the warm-up is worth all of them: if not even half of the accuracy that it
// waits for is reached, all of them would not reach it.
const firstLook = 50

// warmup evaluates a policy that is trained on demonstrations.
type warmup struct {
	*trainer
	sampler rollout.Generator
	task    envs.Task
}

// check samples answers the way RL does: it learns from what the policy samples, not from its most likely answer. A policy
// with half of its greedy answers correct has had one in twenty correct when it sampled, and RL took it to none. A warm-up
// is over when every kind of problem is answered correctly now and then: a kind that never is teaches RL nothing.
func (w *warmup) check(ctx context.Context, updates int) (evaluate.Scores, error) {
	all, until := w.config.Answers.EvalSamples, w.config.Warmup.Until
	sampled := w.evaluation()
	sampled.Sampling = torch.Sampling{Temperature: 1}
	if w.config.Fresh != nil {
		sampled.Sampling = w.config.Fresh.Sampling.Torch()
	}
	var scores rl.AnswerScores
	enough := false
	for _, n := range []int{min(firstLook, all), all} {
		var err error
		if scores, err = rollout.Evaluate(ctx, w.sampler, w.task, 0, n, sampled); err != nil {
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
			return fmt.Sprintf("After %s, sampled as in RL: %s", report.Plural(updates, "update"), describe(scores))
		},
	}, nil
}

// endlessUpdates is how long demonstrations that do not end are trained on by default.
const endlessUpdates = 1500

// mostDemonstrations is how many one run makes: some 4 GB of them.
const mostDemonstrations = 1 << 22

// demonstrations are those to train on, and those of held-out episodes if the task has a limited number of both.
func (t *trainer) demonstrations(ctx context.Context, p *policy.CausalLM, task envs.Task) (rows, held policy.TokenExamples, err error) {
	c, options := t.config, policy.EncodeOptions{CompletionOnly: true}
	if err := t.choicesFit(p, task); err != nil {
		return rows, held, err
	}
	n, part := task.Len(envs.Train), envs.Train
	if n == 0 {
		part = envs.Warmup
		if c.Supervised.MaxSteps == 0 {
			c.Supervised.MaxSteps = endlessUpdates
		}
		if n = c.Supervised.MaxSteps * c.Supervised.BatchSize; c.Supervised.MaxSteps > mostDemonstrations/c.Supervised.BatchSize {
			return rows, held, c.Errorf("batch_size", "%d: %s need %d demonstrations, all made before the first; the limit is %d: lower batch_size or max_steps",
				c.Supervised.BatchSize, report.Plural(c.Supervised.MaxSteps, "update"), n, mostDemonstrations)
		}
	}
	if rows, err = p.Encode(solutions(ctx, task, part, n), options); err != nil {
		return rows, held, err
	}
	if most := task.Len(envs.Eval); most > 0 && task.Len(envs.Train) > 0 {
		held, err = p.Encode(solutions(ctx, task, envs.Eval, min(c.Answers.EvalSamples, most)), options)
	}
	return rows, held, err
}

// records reads the data set's training and validation examples. Without a validation split a fraction of the training
// rows is kept for it.
func (t *trainer) records(ctx context.Context, p *policy.CausalLM) (rows, held policy.TokenExamples, err error) {
	c := t.config
	records, err := c.Settings.(envs.RecordSource).Records(ctx, t.setup())
	if err != nil {
		return rows, held, c.Blame(err)
	}
	o := policy.EncodeOptions{SkipBad: records.SkipBad, MaxLength: c.TextSFT.MaxLength, CompletionOnly: c.TextSFT.CompletionOnly, AssistantOnly: c.TextSFT.AssistantOnly, Curriculum: c.TextSFT.Curriculum}
	encode := func(records iter.Seq2[dataset.Record, error], o policy.EncodeOptions) (policy.TokenExamples, error) {
		return p.Encode(chat.Examples(records, chat.LanguageModelling, chat.PromptCompletion), o)
	}
	if rows, err = encode(records.Train, o); err != nil {
		return rows, held, err
	}
	if records.Validation != nil {
		unordered := o
		unordered.Curriculum = ""
		if held, err = encode(records.Validation, unordered); err != nil {
			return rows, held, err
		}
	}
	if len(held.Sequences) == 0 {
		rows.Sequences, held.Sequences = keepForValidation(rows.Sequences, c.TextSFT.ValidationShare, c.General.Seed)
	}
	for _, more := range records.Mixed {
		mixed, err := encode(more, o)
		if err != nil {
			return rows, held, err
		}
		rows.Join(mixed)
	}
	return rows, held, t.someRows(len(rows.Sequences))
}

// someRows refuses to train on nothing.
func (t *trainer) someRows(n int) error {
	if n == 0 {
		return fmt.Errorf("%s: no training rows are left", t.dataName())
	}
	return nil
}
