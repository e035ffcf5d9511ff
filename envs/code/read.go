package code

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/envs/dataset"
)

// Read reads problems from a file or folder: HumanEval, MBPP, rows in rltrain's layout, or a folder with one folder per
// problem. language is the programs' language. Rows that cannot be used are added to faults.
func Read(faults *dataset.Faults, path, language, task string) ([]Problem, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	var problems []Problem
	if info.IsDir() {
		if (task == QToPython) != (language == "python") {
			return nil, fmt.Errorf("%s: code_task %s does not fit language %s; use %s with python, the other tasks with q or pepper", path, task, language, QToPython)
		}
		problems, err = readFolder(faults, path, task)
	} else {
		problems, err = readFile(faults, path, language)
	}
	if err == nil {
		problems, err = distinct(faults, problems)
	}
	if err := cmp.Or(err, faults.Err()); err != nil {
		return nil, err
	}
	if len(problems) == 0 {
		return nil, fmt.Errorf("%s: no problems", path)
	}
	return problems, nil
}

func readFile(faults *dataset.Faults, path, language string) ([]Problem, error) {
	var problems []Problem
	rows := 0
	for r, err := range dataset.Records(path) {
		if err != nil {
			return nil, err
		}
		p, err := readRow(fields{r.Fields}, language)
		if err == nil {
			err = p.check()
		}
		if p.Place = r.Place(); p.Name == "" {
			p.Name = fmt.Sprint(rows)
		}
		rows++
		if err == nil {
			problems = append(problems, p)
		} else if err := faults.Add(fmt.Errorf("%s: %w", p.Place, err)); err != nil {
			return nil, err
		}
	}
	return problems, nil
}

// fields are the fields of a row.
type fields struct{ dataset.Object }

// text returns a text field, or "" if it is missing.
func (f fields) text(name string) (string, error) {
	value, ok := f.Get(name)
	if !ok || value == nil {
		return "", nil
	}
	text, ok := value.(string)
	if !ok {
		return "", fmt.Errorf("field %q is not text", name)
	}
	return strings.ReplaceAll(text, "\r\n", "\n"), nil
}

// texts returns a list of texts, or the lines of a text.
func (f fields) texts(name string) ([]string, error) {
	value, ok := f.Get(name)
	if text, one := value.(string); one && text != "" {
		return []string{text}, nil
	}
	if !ok || value == nil || value == "" {
		return nil, nil
	}
	list, ok := value.([]any)
	if !ok {
		return nil, fmt.Errorf("field %q is not a list", name)
	}
	var texts []string
	for _, one := range list {
		text, ok := one.(string)
		if !ok {
			return nil, fmt.Errorf("field %q has an element that is not text", name)
		}
		texts = append(texts, strings.ReplaceAll(text, "\r\n", "\n"))
	}
	return texts, nil
}

// name returns the row's name as text.
func (f fields) name() string {
	for _, name := range []string{"task_id", "name", "id"} {
		if value, ok := f.Get(name); ok && value != nil {
			return fmt.Sprint(value)
		}
	}
	return ""
}

func (f fields) has(name string) bool {
	_, ok := f.Get(name)
	return ok
}

// checkFunction matches HumanEval's kind of tests, which a runner calls with the function.
var checkFunction = regexp.MustCompile(`(?m)^def check\(`)

// readRow reads a row in any of the layouts.
func readRow(f fields, language string) (Problem, error) {
	p := Problem{Name: f.name()}
	var errs []error
	get := func(into *string, names ...string) {
		for _, name := range names {
			if *into == "" {
				var err error
				*into, err = f.text(name)
				errs = append(errs, err)
			}
		}
	}
	list := func(name string) []string {
		texts, err := f.texts(name)
		errs = append(errs, err)
		return texts
	}
	get(&p.Kind, "kind")
	get(&p.Entry, "entry_point")
	switch {
	case f.has("entry_point") && f.has("test"): // HumanEval
		get(&p.Prefix, "prompt")
		get(&p.Solution, "canonical_solution")
		get(&p.Check, "test")
		p.Text, p.Setup = p.Prefix, []string{p.Prefix}
	case f.has("test_list"): // MBPP
		get(&p.Text, "text", "prompt")
		get(&p.Solution, "code")
		p.Setup = append(list("test_imports"), list("test_setup_code")...)
		p.Tests, p.Hidden = asserts(list("test_list")), asserts(list("challenge_test_list"))
	default:
		get(&p.Text, "prompt", "text", "question")
		get(&p.Prefix, "prefix")
		get(&p.Solution, "solution")
		get(&p.Source, "source")
		get(&p.Check, "check")
		p.Setup = list("setup")
		if value, ok := f.Get("tests"); ok {
			if program, isText := value.(string); isText && p.Check == "" && p.Entry != "" && checkFunction.MatchString(program) {
				p.Check = program
			} else if isText {
				p.Program = program
			} else {
				var err error
				p.Tests, err = ownTests("tests", value)
				errs = append(errs, err)
			}
		}
		if value, ok := f.Get("hidden_tests"); ok {
			var err error
			p.Hidden, err = ownTests("hidden_tests", value)
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return p, firstOf(errs)
	}
	if language != "python" {
		for _, t := range p.Tests {
			if t.Assert != "" {
				return p, fmt.Errorf("assertions work only with language python; for %s use tests with input and output", language)
			}
		}
		if p.Check != "" || p.Program != "" {
			return p, fmt.Errorf("test programs work only with language python; for %s use tests with input and output", language)
		}
	}
	return p, nil
}

func firstOf(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func asserts(texts []string) []Test {
	var tests []Test
	for _, text := range texts {
		tests = append(tests, Test{Assert: text})
	}
	return tests
}

// ownTests reads tests in rltrain's layout: each has input and output, script and output, call and expect, or assert.
func ownTests(field string, value any) ([]Test, error) {
	list, ok := value.([]any)
	if !ok {
		return nil, fmt.Errorf("field %q is neither a list nor a program", field)
	}
	var tests []Test
	for i, one := range list {
		object, ok := one.(dataset.Object)
		if !ok {
			return nil, fmt.Errorf("field %q: test %d is not an object", field, i+1)
		}
		f := fields{object}
		var t Test
		var errs []error
		get := func(name string) string {
			text, err := f.text(name)
			errs = append(errs, err)
			return text
		}
		switch {
		case f.has("call"):
			call, expect := get("call"), get("expect")
			if strings.TrimSpace(call) == "" || strings.TrimSpace(expect) == "" {
				errs = append(errs, errors.New("call and expect are both needed, as expressions"))
			}
			t.Assert = "assert (" + call + ") == (" + expect + ")"
		case f.has("assert"):
			t.Assert = get("assert")
		case f.has("output"):
			t.Input, t.Script, t.Want = get("input"), get("script"), get("output")
		default:
			errs = append(errs, errors.New("no output, no call with expect, and no assert"))
		}
		if err := firstOf(errs); err != nil {
			return nil, fmt.Errorf("field %q: test %d: %w", field, i+1, err)
		}
		tests = append(tests, t)
	}
	return tests, nil
}

// Tasks for a folder of problems, each with a Python and a q version.
const (
	DescriptionToQ = "description_to_q"
	PythonToQ      = "python_to_q"
	QToPython      = "q_to_python"
)

// readFolder reads a folder with one folder per problem.
func readFolder(faults *dataset.Faults, path, task string) ([]Problem, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var problems []Problem
	for _, entry := range entries {
		if !entry.IsDir() || strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		p, err := readProblem(filepath.Join(path, entry.Name()), task)
		if p.Name = entry.Name(); err == nil {
			problems = append(problems, p)
		} else if err := faults.Add(err); err != nil {
			return nil, err
		}
	}
	return problems, nil
}

// readProblem reads the files of a problem.
func readProblem(folder, task string) (Problem, error) {
	p := Problem{Place: folder}
	need := func(name string) (string, error) {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			return "", fmt.Errorf("%s: reading %s: %w", folder, name, err)
		}
		return strings.ReplaceAll(string(text), "\r\n", "\n"), nil
	}
	may := func(name string) string {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			return ""
		}
		return strings.ReplaceAll(string(text), "\r\n", "\n")
	}
	var err error
	if p.Text, err = need("problem_description.txt"); err != nil {
		return p, err
	}
	test, want := "q_test_case_%s.q", "q_exact_ans_test_case_%s.txt"
	switch task {
	case QToPython:
		test, want = "test_case_%s.py", "python_exact_ans_test_case_%s.txt"
		if p.Source, err = need("q_sol.q"); err != nil {
			return p, err
		}
		p.Solution = may("python_sol.py")
	case PythonToQ:
		if p.Source, err = need("python_sol.py"); err != nil {
			return p, err
		}
		p.Solution = may("q_sol.q")
	default:
		p.Solution = may("q_sol.q")
	}
	numbers, err := numbered(folder, test)
	if err != nil {
		return p, err
	}
	for _, n := range numbers {
		t := Test{}
		if t.Script, err = need(fmt.Sprintf(test, n)); err != nil {
			return p, err
		}
		if t.Want, err = need(fmt.Sprintf(want, n)); err != nil {
			return p, err
		}
		p.Tests = append(p.Tests, t)
	}
	if len(p.Tests) == 0 {
		return p, fmt.Errorf("%s: no tests; file %s is missing", folder, fmt.Sprintf(test, "1"))
	}
	return p, nil
}

// numbered returns the numbers of the files that match a format, in order.
func numbered(folder, format string) ([]string, error) {
	before, after, _ := strings.Cut(format, "%s")
	names, err := filepath.Glob(filepath.Join(escaped(folder), before+"*"+after))
	if err != nil {
		return nil, err
	}
	var numbers []string
	for _, name := range names {
		n := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(name), before), after)
		if _, err := strconv.Atoi(n); err == nil {
			numbers = append(numbers, n)
		}
	}
	slices.SortFunc(numbers, func(a, b string) int {
		x, _ := strconv.Atoi(a)
		y, _ := strconv.Atoi(b)
		return x - y
	})
	return numbers, nil
}

// escaped escapes a path for filepath.Glob.
func escaped(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}
