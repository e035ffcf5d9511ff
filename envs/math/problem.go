package math

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/answer"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/words"
)

// Names of the tasks.
const (
	GSM8K = "gsm8k" // grade-school problems with one number as the answer
	MATH  = "math"  // competition problems whose answer is in \boxed{}
)

// announcement stands before the answer of a GSM8K solution.
const announcement = "The answer is:"

// Problem is one exercise with its solution.
type Problem struct {
	Task     string // GSM8K or MATH
	Question string
	Solution string // one step a line; it ends in "The answer is: n" or has a \boxed{}
	Answer   string // of the solution
	Kind     string // as level or subject, "" where it is not known
}

// NewProblem reads the answer out of a solution and brings the solution into the form
// that a model is shown: for GSM8K "#### 18" becomes "The answer is: 18", for MATH
// every sentence gets a line.
func NewProblem(task, question, solution string) (Problem, error) {
	p := Problem{Task: task, Question: strings.TrimSpace(question), Solution: strings.TrimSpace(solution)}
	var found bool
	switch task {
	case GSM8K:
		p.Solution = strings.ReplaceAll(p.Solution, "####", announcement)
		p.Answer, found = answer.Phrase(p.Solution)
	case MATH:
		p.Solution = strings.ReplaceAll(p.Solution, ". ", ".\n")
		p.Answer, found = answer.Boxed(p.Solution)
	default:
		return Problem{}, fmt.Errorf("task %q is not one of %s and %s", task, GSM8K, MATH)
	}
	switch {
	case p.Question == "":
		return Problem{}, errors.New("the question is empty")
	case !found || p.Answer == "":
		return Problem{}, fmt.Errorf("the solution has no answer: want one behind %q or \"####\" (gsm8k), in \\boxed{} (math)", announcement)
	}
	return p, nil
}

// Verify compares a written solution with the answer. With answer.Exact the answer is
// what follows the last "the answer is" (GSM8K) or the last \boxed{} (MATH), with
// answer.Math what [answer.Find] finds, else what [answer.Final] finds. Formatted says whether it was given in that form.
func (p Problem) Verify(text string, match answer.Match) *envs.Info {
	info := &envs.Info{Truth: p.Answer, Kind: p.Kind, FoundBy: string(answer.NotFound)}
	formal, formatted := answer.Phrase(text)
	form := answer.ByPhrase
	if p.Task == MATH {
		formal, formatted = answer.Boxed(text)
		form = answer.ByBoxed
	}
	info.FormatOK = formatted
	found, tier := formal, form
	switch {
	case match == answer.Math:
		found, tier = answer.Find(text)
	case match != answer.Exact && !(p.Task == MATH && formatted):
		found, tier = answer.Final(text)
	case !formatted:
		tier = answer.NotFound
	}
	info.Answer, info.FoundBy = found, string(tier)
	info.Correct = tier != answer.NotFound && match.Same(found, p.Answer)
	return info
}

// Read reads the problems of files, in any format that [dataset.Records] reads: rows
// with the fields question and answer, or problem and solution, and in the named column
// the kind of a problem, "" for none; other fields are ignored.
func Read(files Files, task, kind string) ([]Problem, error) {
	problems, _, err := read(files, task, kind, "")
	return problems, err
}

// ReadCompletions reads problems with a solution that a model wrote, which is in the
// named field.
func ReadCompletions(path, task, field string) (problems []Problem, completions []string, err error) {
	return read(Files{path, []string{path}}, task, "", field)
}

func read(files Files, task, kind, field string) (problems []Problem, completions []string, err error) {
	for r, err := range dataset.Records(files.Paths...) {
		if err != nil {
			return nil, nil, err
		}
		question, solution := "problem", "solution"
		if _, ok := r.Fields.Get("question"); ok {
			question, solution = "question", "answer"
		}
		names := []string{question, solution}
		if field != "" {
			names = append(names, field)
		}
		values := make([]string, len(names))
		for i, name := range names {
			value, _ := r.Fields.Get(name)
			text, ok := value.(string)
			if !ok {
				return nil, nil, fmt.Errorf("%s: field %q is missing or no text", r.Place(), name)
			}
			values[i] = text
		}
		p, err := NewProblem(task, values[0], values[1])
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", r.Place(), err)
		}
		if p.Kind, err = kindOf(r, kind, problems == nil); err != nil {
			return nil, nil, err
		}
		problems = append(problems, p)
		if field != "" {
			completions = append(completions, values[2])
		}
	}
	if len(problems) == 0 {
		return nil, nil, fmt.Errorf("%s: the file has no problems", files.Name)
	}
	return problems, completions, nil
}

// kindOf is what a row has in the column of kinds, as text.
func kindOf(r dataset.Record, column string, first bool) (string, error) {
	if column == "" {
		return "", nil
	}
	value, ok := r.Fields.Get(column)
	switch v := value.(type) {
	case string:
		return v, nil
	case int64, float64, bool, json.Number:
		return fmt.Sprint(v), nil
	}
	if !ok && first {
		return "", &envs.OptionError{Option: "kind_column", Err: fmt.Errorf("%s has no column %s; its columns are %s", r.File, words.Quote(column), words.List(r.Fields.Names()))}
	}
	return "", fmt.Errorf("%s: column %s is missing or neither text nor a number", r.Place(), words.Quote(column))
}
