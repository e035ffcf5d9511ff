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

// Task names.
const (
	GSM8K = "gsm8k" // grade-school problems with one number as the answer
	MATH  = "math"  // competition problems whose answer is in \boxed{}
)

// announcement precedes the answer of a GSM8K solution.
const announcement = "The answer is:"

// Problem is a question with its solution.
type Problem struct {
	Task     string // GSM8K or MATH
	Question string
	Solution string // one step per line; ends in "The answer is: n" or has a \boxed{}
	Answer   string // extracted from Solution
	Kind     string // level or subject, "" if unknown
}

// NewProblem extracts the answer and converts the solution to the format that a model sees. For GSM8K, "#### 18" becomes
// "The answer is: 18"; for MATH, each sentence gets a line.
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
		return Problem{}, fmt.Errorf("unknown task %q; choose %s or %s", task, GSM8K, MATH)
	}
	switch {
	case p.Question == "":
		return Problem{}, errors.New("the question is empty")
	case !found || p.Answer == "":
		return Problem{}, fmt.Errorf("the solution has no answer; want one after %q or \"####\" (gsm8k), or in \\boxed{} (math)", announcement)
	}
	return p, nil
}

// Verify compares a generated solution with the answer. answer.Exact reads what follows the last "the answer is" (GSM8K)
// or the last \boxed{} (MATH); answer.Math uses [answer.Find], the others [answer.Final]. FormatOK says whether the text
// has the task's answer format.
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
	info.Doubted = tier == answer.ByLastNumber && !answer.Certain(p.Answer, text)
	return info
}

// Read reads problems from files in any format of [dataset.Records]: rows with the fields question and answer, or problem
// and solution. kind names an optional column with the problem's kind. Other fields are ignored. Rows that cannot be used are
// added to faults.
func Read(faults *dataset.Faults, files Files, task, kind string) ([]Problem, error) {
	problems, _, err := read(faults, files, task, kind, "")
	return problems, err
}

// ReadCompletions reads problems with a generated solution in the named field.
func ReadCompletions(faults *dataset.Faults, path, task, field string) (problems []Problem, completions []string, err error) {
	return read(faults, Files{Name: path, Paths: []string{path}}, task, "", field)
}

func read(faults *dataset.Faults, files Files, task, kind, field string) (problems []Problem, completions []string, err error) {
	first := true
	for r, err := range files.Reader.Records(files.Paths...) {
		if err != nil {
			return nil, nil, err
		}
		p, completion, err := readRow(r, task, field)
		if err == nil {
			p.Kind, err = kindOf(r, kind, first)
		}
		first = false
		switch {
		case isOption(err):
			return nil, nil, err
		case err != nil:
			if err := faults.Add(fmt.Errorf("%s: %w", r.Place(), err)); err != nil {
				return nil, nil, err
			}
			continue
		}
		problems = append(problems, p)
		if field != "" {
			completions = append(completions, completion)
		}
	}
	if err := faults.Err(); err != nil {
		return nil, nil, err
	}
	if len(problems) == 0 {
		return nil, nil, fmt.Errorf("%s: no problems", files.Name)
	}
	return problems, completions, nil
}

func isOption(err error) bool {
	_, is := errors.AsType[*envs.OptionError](err)
	return is
}

// readRow reads a problem, and the completion in field unless that is "".
func readRow(r dataset.Record, task, field string) (p Problem, completion string, err error) {
	question, solution := "problem", "solution"
	if _, ok := r.Fields.Get("question"); ok {
		question, solution = "question", "answer"
	}
	text := func(name string) (text string) {
		value, _ := r.Fields.Get(name)
		text, ok := value.(string)
		if !ok && err == nil {
			err = fmt.Errorf("field %q is missing or not text", name)
		}
		return text
	}
	asked, solved := text(question), text(solution)
	if field != "" {
		completion = text(field)
	}
	if err == nil {
		p, err = NewProblem(task, asked, solved)
	}
	return p, completion, err
}

// kindOf returns the kind column of a row as text.
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
		return "", envs.OptionErrorf("kind_column", "%s has no column %s; its columns are %s", r.File, words.Quote(column), words.List(r.Fields.Names()))
	}
	return "", fmt.Errorf("column %s is missing, or neither text nor a number", words.Quote(column))
}
