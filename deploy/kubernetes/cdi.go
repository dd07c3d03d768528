// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// describer tells container engines of a lease, by a file of the Container Device Interface.
type describer interface {
	// describe writes the lease's file, also anew, and returns the device's name for the kubelet.
	describe(ctx context.Context, lease terraceLease, name string, options parameters) (string, error)
	// forget removes it; nil also where there is none.
	forget(ctx context.Context, lease uint64) error
	// described lists the leases of which there are files whose device's name begins with `prefix`.
	described(prefix string) ([]uint64, error)
}

// terraceCLI has `terrace lease cdi` do it, which knows where a lease's memory is.
type terraceCLI struct {
	program      string
	socket       string
	directory    string
	tenantSocket string // of a tenant, mounted into the container; empty: none. {namespace} is the claim's
}

const cdiTimeout = 30 * time.Second

// run returns stdout; an error has what the program said.
func (c *terraceCLI) run(ctx context.Context, arguments ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, cdiTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, c.program, append([]string{"--socket", c.socket, "--json", "lease", "cdi"}, arguments...)...)
	var out, said bytes.Buffer
	command.Stdout, command.Stderr = &out, &said
	if err := command.Run(); err != nil {
		return nil, &cliError{command: strings.Join(command.Args, " "), err: err, said: strings.TrimSpace(said.String() + out.String())}
	}
	return out.Bytes(), nil
}

type cliError struct {
	command, said string
	err           error
}

func (e *cliError) Error() string { return fmt.Sprintf("%s: %v: %s", e.command, e.err, e.said) }

func (c *terraceCLI) describe(ctx context.Context, lease terraceLease, name string, options parameters) (string, error) {
	arguments := []string{strconv.FormatUint(lease.ID, 10), "--tenant", lease.Tenant, "--directory", c.directory, "--name", name,
		"--container-path", options.Path}
	if options.ReadOnly {
		arguments = append(arguments, "--ro")
	}
	if options.User != nil {
		arguments = append(arguments, "--user", strconv.FormatInt(*options.User, 10))
	}
	if c.tenantSocket != "" {
		parts, _ := parseLabel(lease.Label)
		namespace, _, _ := strings.Cut(parts.claim, ".")
		arguments = append(arguments, "--tenant-socket", inNamespace(c.tenantSocket, namespace))
	}
	out, err := c.run(ctx, arguments...)
	if err != nil {
		return "", err
	}
	var made struct {
		Device string `json:"device"`
	}
	if err := json.Unmarshal(out, &made); err != nil || made.Device == "" {
		return "", fmt.Errorf("terrace lease cdi names no device: %.200s", out)
	}
	return made.Device, nil
}

func (c *terraceCLI) forget(ctx context.Context, lease uint64) error {
	file := filepath.Join(c.directory, fmt.Sprintf("terrace.dev-lease-%d.json", lease))
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	_, err := c.run(ctx, strconv.FormatUint(lease, 10), "--directory", c.directory, "--remove")
	if _, left := os.Stat(file); errors.Is(left, os.ErrNotExist) {
		return nil
	}
	return err
}

var cdiFilePattern = regexp.MustCompile(`^terrace\.dev-lease-([0-9]+)\.json$`)

func (c *terraceCLI) described(prefix string) ([]uint64, error) {
	entries, err := os.ReadDir(c.directory)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var leases []uint64
	for _, entry := range entries {
		found := cdiFilePattern.FindStringSubmatch(entry.Name())
		if found == nil {
			continue
		}
		var document struct {
			Devices []struct {
				Name string `json:"name"`
			} `json:"devices"`
		}
		text, err := os.ReadFile(filepath.Join(c.directory, entry.Name()))
		if err != nil || json.Unmarshal(text, &document) != nil || len(document.Devices) != 1 ||
			!strings.HasPrefix(document.Devices[0].Name, prefix) {
			continue // removed meanwhile, or somebody else's
		}
		if id, err := strconv.ParseUint(found[1], 10, 64); err == nil {
			leases = append(leases, id)
		}
	}
	return leases, nil
}

func inNamespace(pattern, namespace string) string {
	return strings.ReplaceAll(pattern, "{namespace}", namespace)
}
