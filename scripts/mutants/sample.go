package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/importer"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/rltrain/rltrain/internal/files"
)

// learning are the packages that the sample is taken from.
var learning = []string{"rl", "rl/algo", "rl/decisions", "rl/epochs", "rl/policy", "rl/rollout", "rl/train", "lora", "envs", "envs/reward"}

// nearby are the folders whose tests, with those below, must notice the sample.
var nearby = []string{"rl", "lora", "envs", "torch"}

// switchFile is added to each package that has mutants.
const switchFile = "zz_mutants.go"

// switchText is a file that puts in the mutant whose number is in the environment. If that is -1, it prints the number of
// each mutant that is reached: the first times always, later at most once in 50 µs, which few tests are shorter than.
func switchText(pkg string) []byte {
	return []byte("package " + pkg + `

import (
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

var (
	mutantChosen, _ = strconv.Atoi(os.Getenv("RLTRAIN_MUTANT"))
	// A child of a test prints something else.
	mutantPrints = mutantChosen < 0 && slices.Contains(os.Args, "-test.v")
	mutantOut    = os.Stdout // examples replace it
	mutantLock   sync.Mutex
	mutantTimes  = map[int]int{}
	mutantLast   = map[int]time.Time{}
)

func mutantOn(id int) bool {
	if mutantPrints {
		mutantLock.Lock()
		defer mutantLock.Unlock()
		mutantTimes[id]++
		if mutantTimes[id] < 20000 || time.Since(mutantLast[id]) > 50*time.Microsecond {
			mutantLast[id] = time.Now()
			mutantOut.WriteString("@mutant " + strconv.Itoa(id) + "@\n")
		}
	}
	return id == mutantChosen
}
`)
}

// listed is a package as the go command lists it.
type listed struct {
	ImportPath, Name, Dir, Export      string
	GoFiles, Imports                   []string
	TestGoFiles, XTestGoFiles          []string
	TestImports, XTestImports, CgoFile []string
	folder                             string // relative to the root
}

// list runs go list.
func list(args ...string) ([]listed, error) {
	command := exec.Command("go", append([]string{"list", "-json"}, args...)...)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	var all []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		p.folder, _ = filepath.Rel(root, p.Dir)
		all = append(all, p)
	}
}

// sampler tries mutants.
type sampler struct {
	work     string
	mutants  []mutant
	packages []listed // all of the module
	tested   []listed // with tests that may notice the sample
	results  *sampleResults
}

// sample tries n mutants. Its results are kept in build/_mutants, so that an interrupted sample continues.
func sample(n int, seed uint64, out, part string) error {
	s := sampler{work: filepath.Join("build", "_mutants"), results: &sampleResults{Seed: seed}}
	if err := os.MkdirAll(s.work, 0o755); err != nil {
		return err
	}
	if err := s.choose(n, seed); err != nil {
		return err
	}
	fmt.Printf("%d mutants; building the tests of %d packages\n", len(s.mutants), len(s.tested))
	binaries, err := s.build(filepath.Join(s.work, "all"), s.tested, s.overlay(s.mutants))
	if err != nil {
		return err
	}
	suite, err := s.record(binaries)
	if err != nil {
		return err
	}
	kept := filepath.Join(s.work, fmt.Sprintf("results-%d.json", seed))
	if err := s.results.load(kept); err != nil {
		return err
	}
	skip, err := equivalents(filepath.Join("scripts", "mutants", "equivalent.txt"))
	if err != nil {
		return err
	}
	var lock sync.Mutex
	err = each(s.mutants, func(i int, m mutant) error {
		lock.Lock()
		tried, known := s.results.kept[m.id()]
		lock.Unlock()
		reason := skip[m.name()]
		if !known || tried.Noticed != "" && !suite.has(tried.Noticed) || tried.Noticed == "" && tried.Suite != suite.sum || tried.Equivalent != reason {
			tried = verdict{mutant: m, Suite: suite.sum, Equivalent: reason}
			if reason == "" {
				if tried.Noticed, err = s.try(i+1, m, suite); err != nil {
					return err
				}
			}
		}
		tried.mutant = m
		lock.Lock()
		defer lock.Unlock()
		s.results.kept[m.id()] = tried
		fmt.Println(tried)
		return s.results.save(kept)
	})
	if err != nil {
		return err
	}
	return s.results.finish(s.mutants, out, part)
}

// each calls f for all items, several at a time.
func each[T any](items []T, f func(i int, item T) error) error {
	var wait sync.WaitGroup
	next, errs := make(chan int), make([]error, len(items))
	for range 4 {
		wait.Go(func() {
			for i := range next {
				errs[i] = f(i, items[i])
			}
		})
	}
	for i := range items {
		next <- i
	}
	close(next)
	wait.Wait()
	return errors.Join(errs...)
}

// choose picks the mutants, and finds the packages that can notice them.
func (s *sampler) choose(n int, seed uint64) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	if s.packages, err = list("./..."); err != nil {
		return err
	}
	exports, err := list("-export", "-deps", "./...")
	if err != nil {
		return err
	}
	byPath := map[string]string{}
	for _, p := range exports {
		byPath[p.ImportPath] = p.Export
	}
	fset := token.NewFileSet()
	m := &module{root, fset, importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(byPath[path]) })}
	var all []mutant
	for _, p := range s.packages {
		if slices.Contains(learning, p.folder) {
			found, err := m.find(p, seed)
			if err != nil {
				return err
			}
			all = append(all, found...)
		}
	}
	fmt.Printf("%d candidates\n", len(all))
	// Some do not compile, for example a constant that must be one.
	for {
		s.mutants = pick(all, n)
		bad, err := s.faulty(m)
		if err != nil {
			return err
		}
		if len(bad) == 0 {
			break
		}
		all = slices.DeleteFunc(all, func(c mutant) bool { return bad[c.key()] })
	}
	for _, p := range s.packages {
		near := slices.ContainsFunc(nearby, func(folder string) bool { return strings.HasPrefix(p.folder+"/", folder+"/") })
		if len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 && near && slices.ContainsFunc(learning, func(folder string) bool { return s.distance(p, folder) >= 0 }) {
			s.tested = append(s.tested, p)
		}
	}
	return nil
}

func (m mutant) key() string { return fmt.Sprint(m.File, m.start, m.end, m.plain) }

// distance is the number of imports between the tests of p and the package in folder; -1 if there is no such path.
func (s *sampler) distance(p listed, folder string) int {
	near := map[string]bool{p.ImportPath: true}
	for _, path := range slices.Concat(p.TestImports, p.XTestImports) {
		near[path] = true
	}
	if p.folder == folder {
		return 0
	}
	for steps := 1; ; steps++ {
		before := len(near)
		for _, q := range s.packages {
			if near[q.ImportPath] {
				if q.folder == folder {
					return steps
				}
				for _, path := range q.Imports {
					near[path] = true
				}
			}
		}
		if len(near) == before {
			return -1
		}
	}
}

// overlay returns the files with all mutants that a variable can switch on, by path.
func (s *sampler) overlay(mutants []mutant) map[string][]byte {
	texts, _ := s.rewrite(mutants)
	return texts
}

// place is the part of a rewritten file that belongs to a mutant.
type place struct {
	path       string
	start, end int
	mutant     mutant
}

func (s *sampler) rewrite(mutants []mutant) (map[string][]byte, []place) {
	order := make([]int, 0, len(mutants))
	for i, m := range mutants {
		if m.schema != "" {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(mutants[a].File, mutants[b].File), cmp.Compare(mutants[a].start, mutants[b].start))
	})
	texts, done, places := map[string][]byte{}, map[string]int{}, []place{}
	originals := map[string][]byte{}
	for _, i := range order {
		m := mutants[i]
		path, _ := filepath.Abs(m.File)
		if originals[path] == nil {
			originals[path], _ = os.ReadFile(path)
			for _, p := range s.packages {
				if p.folder == m.pkg {
					texts[filepath.Join(p.Dir, switchFile)] = switchText(p.Name)
				}
			}
		}
		texts[path] = append(texts[path], originals[path][done[path]:m.start]...)
		start := len(texts[path])
		texts[path] = append(texts[path], strings.ReplaceAll(m.schema, "@ON@", fmt.Sprintf("mutantOn(%d)", i+1))...)
		places = append(places, place{path, start, len(texts[path]), m})
		done[path] = m.end
	}
	for path, original := range originals {
		texts[path] = append(texts[path], original[done[path]:]...)
	}
	return texts, places
}

// faulty returns the keys of mutants that do not compile.
func (s *sampler) faulty(m *module) (map[string]bool, error) {
	texts, places := s.rewrite(s.mutants)
	bad := map[string]bool{}
	for _, p := range s.packages {
		if _, changed := texts[filepath.Join(p.Dir, switchFile)]; !changed {
			continue
		}
		_, faults, err := m.check(p, texts)
		if err != nil {
			return nil, err
		}
		for _, fault := range faults {
			at := fault.Fset.Position(fault.Pos)
			i := slices.IndexFunc(places, func(q place) bool { return q.path == at.Filename && q.start <= at.Offset && at.Offset < q.end })
			if i < 0 {
				return nil, fmt.Errorf("the mutants of %s do not compile: %w", p.folder, fault)
			}
			bad[places[i].mutant.key()] = true
		}
	}
	return bad, nil
}

// build compiles test binaries, and returns their paths by folder. The source tree stays unchanged: an overlay makes the
// compiler read other files.
func (s *sampler) build(into string, tested []listed, texts map[string][]byte) (map[string]string, error) {
	into, err := filepath.Abs(into)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(into, 0o755); err != nil {
		return nil, err
	}
	replace, n := map[string]string{}, 0
	for path, text := range texts {
		n++
		replace[path] = filepath.Join(into, fmt.Sprintf("%d-%s", n, filepath.Base(path)))
		if err := os.WriteFile(replace[path], text, 0o644); err != nil {
			return nil, err
		}
	}
	overlay := filepath.Join(into, "overlay.json")
	if err := files.SaveJSON(overlay, map[string]any{"Replace": replace}); err != nil {
		return nil, err
	}
	binaries := map[string]string{}
	for _, p := range tested {
		path := filepath.Join(into, strings.ReplaceAll(p.folder, "/", "_")+".test")
		command := exec.CommandContext(context.Background(), "nice", "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", overlay, "-o", path, "./"+p.folder)
		if out, err := command.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("building the tests of %s: %w\n%s", p.folder, err, out)
		}
		binaries[p.folder] = path
	}
	return binaries, nil
}
