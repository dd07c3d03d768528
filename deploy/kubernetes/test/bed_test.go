// SPDX-License-Identifier: Apache-2.0

// Package test has the driver's tests: the real program, a real terraced of its own with emulated devices, the real `terrace`, and
// in place of a cluster a kubelet that speaks the published protos and as much of an API server as the driver asks.
//
//	TERRACE_BUILD_DIR=build/dev go test ./test
package test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
)

const (
	nodeName = "node-a"
	granule  = 2 << 20
)

var driverProgram string

func TestMain(m *testing.M) {
	directory, err := os.MkdirTemp("", "terrace-dra-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	driverProgram = filepath.Join(directory, "terrace-dra")
	build := exec.Command("go", "build", "-p", "1", "-o", driverProgram, "..")
	build.Stdout, build.Stderr = os.Stdout, os.Stderr
	code := 1
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build the driver:", err)
	} else {
		code = m.Run()
	}
	os.RemoveAll(directory)
	os.Exit(code)
}

// eventually waits long: tests run beside others on a busy machine.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if holds() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("it did not come true that %s", what)
		}
	}
}

// bed is one node: a terraced, a driver, an API server.
type bed struct {
	t         *testing.T
	directory string
	objects   string
	terraced  *exec.Cmd
	driver    *exec.Cmd
	api       *apiServer
	// Of the API server that is asked; empty: api.
	kubeconfig string
	flags      []string
}

func built(t *testing.T, name string) string {
	root := os.Getenv("TERRACE_BUILD_DIR")
	if root == "" {
		root = "../../../build/dev"
	}
	path, err := filepath.Abs(filepath.Join(root, name))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Skipf("%s is not built (%v); set TERRACE_BUILD_DIR", name, err)
	}
	return path
}

func newBed(t *testing.T, flags ...string) *bed {
	b := newBedWithoutDriver(t, flags...)
	b.startDriver()
	return b
}

func newBedWithoutDriver(t *testing.T, flags ...string) *bed {
	directory, err := os.MkdirTemp("", "dra") // short: sockets lie below it
	if err != nil {
		t.Fatal(err)
	}
	objects, err := os.MkdirTemp("/dev/shm", "terrace-dra-")
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{t: t, directory: directory, objects: objects, api: startAPIServer(t), flags: flags}
	t.Cleanup(b.close)
	for _, name := range []string{"run", "plugin", "registry", "cdi"} {
		if err := os.Mkdir(b.in(name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	b.startTerraced()
	b.terrace("pool", "create", "main", "--adopt", "--device", "emu:a", "--device", "emu:b")
	return b
}

func (b *bed) in(name string) string { return filepath.Join(b.directory, name) }

func (b *bed) close() {
	b.stop(b.driver, syscall.SIGTERM)
	b.stop(b.terraced, syscall.SIGTERM)
	if b.t.Failed() {
		for _, name := range []string{"driver.log", "terraced.log"} {
			text, _ := os.ReadFile(b.in(name))
			b.t.Logf("%s:\n%s", name, text[max(0, len(text)-20000):])
		}
	}
	os.RemoveAll(b.directory)
	os.RemoveAll(b.objects)
}

// start appends what the program says to NAME.log; it dies with the test.
func (b *bed) start(name, program string, arguments ...string) *exec.Cmd {
	b.t.Helper()
	log, err := os.OpenFile(b.in(name+".log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		b.t.Fatal(err)
	}
	defer log.Close()
	command := exec.Command(program, arguments...)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		b.t.Fatal(err)
	}
	return command
}

func (b *bed) stop(command *exec.Cmd, signal syscall.Signal) {
	if command == nil || command.ProcessState != nil {
		return
	}
	_ = command.Process.Signal(signal)
	_ = command.Wait()
}

func (b *bed) startTerraced() {
	b.t.Helper()
	b.terraced = b.start("terraced", built(b.t, "daemon/terraced"), "--runtime-dir", b.in("run"), "--state", b.in("state.db"),
		"--emulate", "a=64M", "--emulate", "b=64M", "--no-hardware", "--no-mount", "--object-dir", b.objects)
	eventually(b.t, "terraced serves", func() bool { return b.try("status") == nil })
}

func (b *bed) writeKubeconfig() {
	b.t.Helper()
	config := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":%q}}],`+
		`"users":[{"name":"u","user":{}}],"contexts":[{"name":"x","context":{"cluster":"c","user":"u"}}],"current-context":"x"}`, b.api.server.URL)
	if err := os.WriteFile(b.in("kubeconfig"), []byte(config), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) startDriver() {
	b.t.Helper()
	if b.kubeconfig == "" {
		b.kubeconfig = b.in("kubeconfig")
		b.writeKubeconfig()
	}
	b.driver = b.start("driver", driverProgram, append([]string{
		"-kubeconfig", b.kubeconfig, "-node-name", nodeName, "-terrace", built(b.t, "cli/terrace"),
		"-terrace-http-socket", b.in("run/http.sock"), "-terrace-socket", b.in("run/terraced.sock"), "-cdi-directory", b.in("cdi"),
		"-plugin-directory", b.in("plugin"), "-registry-directory", b.in("registry"), "-interval", "200ms", "-look-every", "2s",
		"-away-after", "2s", "-reconcile-every", "1s", "-reconcile-grace", "1s", "-v", "5"}, b.flags...)...)
}

func (b *bed) killDriver() {
	b.stop(b.driver, syscall.SIGKILL)
}

func (b *bed) try(arguments ...string) error {
	return exec.Command(built(b.t, "cli/terrace"), append([]string{"--socket", b.in("run/terraced.sock")}, arguments...)...).Run()
}

// terrace runs the command and returns what it printed.
func (b *bed) terrace(arguments ...string) []byte {
	b.t.Helper()
	command := exec.Command(built(b.t, "cli/terrace"), append([]string{"--socket", b.in("run/terraced.sock")}, arguments...)...)
	var said strings.Builder
	command.Stderr = &said
	out, err := command.Output()
	if err != nil {
		b.t.Fatalf("terrace %v: %v: %s", arguments, err, said.String())
	}
	return out
}

type lease struct {
	ID         uint64 `json:"id"`
	Label      string `json:"label"`
	Tenant     string `json:"tenant"`
	Bytes      uint64 `json:"bytes"`
	Mode       string `json:"mode"`
	Phase      string `json:"phase"`
	Persistent bool   `json:"persistent"`
}

// leases are those that somebody has, as the manager says.
func (b *bed) leases() []lease {
	b.t.Helper()
	var answer struct {
		Leases []lease `json:"leases"`
	}
	if err := json.Unmarshal(b.terrace("--json", "lease", "list"), &answer); err != nil {
		b.t.Fatal(err)
	}
	var active []lease
	for _, one := range answer.Leases {
		if one.Phase == "active" {
			active = append(active, one)
		}
	}
	return active
}

func (b *bed) leaseOf(c *claim) lease {
	b.t.Helper()
	for _, one := range b.leases() {
		if strings.Contains(one.Label, c.uid) {
			return one
		}
	}
	b.t.Fatalf("claim %s has no lease", c.name)
	return lease{}
}

func (b *bed) cdiFiles() []string {
	found, _ := filepath.Glob(b.in("cdi") + "/*")
	return found
}

// claim is an allocated ResourceClaim of the API server, as a scheduler would leave it.
type claim struct{ namespace, name, uid, share string }

func (c *claim) path() string {
	return "/apis/resource.k8s.io/v1/namespaces/" + c.namespace + "/resourceclaims/" + c.name
}

// newClaim asks for so much of pool main with these parameters (nil: none).
func (b *bed) newClaim(name string, bytes uint64, parameters map[string]any) *claim {
	c := &claim{namespace: "default", name: name, uid: string(uuid.NewUUID()), share: string(uuid.NewUUID())}
	size := fmt.Sprint(bytes)
	config := []any{}
	if parameters != nil {
		parameters["apiVersion"], parameters["kind"] = "terrace.dev/v1", "LeaseParameters"
		config = []any{map[string]any{"source": "FromClaim", "requests": []any{"mem"},
			"opaque": map[string]any{"driver": "terrace.dev", "parameters": parameters}}}
	}
	b.api.put(c.path(), map[string]any{
		"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
		"metadata": map[string]any{"namespace": c.namespace, "name": name, "uid": c.uid},
		"spec": map[string]any{"devices": map[string]any{"requests": []any{map[string]any{"name": "mem", "exactly": map[string]any{
			"deviceClassName": "terrace.dev", "capacity": map[string]any{"requests": map[string]any{"memory": size}}}}}}},
		"status": map[string]any{"allocation": map[string]any{"devices": map[string]any{
			"results": []any{map[string]any{"request": "mem", "driver": "terrace.dev", "pool": nodeName + "/main", "device": "memory",
				"shareID": c.share, "consumedCapacity": map[string]any{"memory": size}}},
			"config": config}}},
	})
	return c
}
