// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// kubelet does what a kubelet does with a driver, over the published protos: finds its registration socket, asks who it is, and
// calls it. A new one is a restarted kubelet.
type kubelet struct {
	connection *grpc.ClientConn
	info       *registration.PluginInfo
	dra        drav1.DRAPluginClient
}

func dialSocket(path string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// startKubelet waits for the driver's registration.
func startKubelet(t *testing.T, registry string) *kubelet {
	t.Helper()
	var k *kubelet
	eventually(t, "the driver registers", func() bool {
		sockets, _ := filepath.Glob(filepath.Join(registry, "*-reg.sock"))
		for _, socket := range sockets {
			if k = register(socket); k != nil {
				return true
			}
		}
		return false
	})
	t.Cleanup(func() { k.connection.Close() })
	if k.info.Type != "DRAPlugin" || !slices.Contains(k.info.SupportedVersions, "v1.DRAPlugin") ||
		!slices.Contains(k.info.SupportedVersions, "v1.DRAResourceHealth") {
		t.Fatalf("registration says %v", k.info)
	}
	return k
}

func register(socket string) *kubelet {
	connection, err := dialSocket(socket)
	if err != nil {
		return nil
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	client := registration.NewRegistrationClient(connection)
	info, err := client.GetInfo(ctx, &registration.InfoRequest{})
	if err != nil {
		return nil
	}
	if _, err := client.NotifyRegistrationStatus(ctx, &registration.RegistrationStatus{PluginRegistered: true}); err != nil {
		return nil
	}
	if _, err := os.Stat(info.Endpoint); err != nil {
		return nil
	}
	calls, err := dialSocket(info.Endpoint)
	if err != nil {
		return nil
	}
	return &kubelet{connection: calls, info: info, dra: drav1.NewDRAPluginClient(calls)}
}

func draClaim(c *claim) *drav1.Claim {
	return &drav1.Claim{Namespace: c.namespace, Uid: c.uid, Name: c.name}
}

// prepare returns the claim's devices; the error is the call's, or the claim's own.
func (k *kubelet) prepare(c *claim) ([]*drav1.Device, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	answer, err := k.dra.NodePrepareResources(ctx, &drav1.NodePrepareResourcesRequest{Claims: []*drav1.Claim{draClaim(c)}})
	if err != nil {
		return nil, err
	}
	if said := answer.Claims[c.uid].Error; said != "" {
		return nil, textError(said)
	}
	return answer.Claims[c.uid].Devices, nil
}

func (k *kubelet) unprepare(c *claim) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	answer, err := k.dra.NodeUnprepareResources(ctx, &drav1.NodeUnprepareResourcesRequest{Claims: []*drav1.Claim{draClaim(c)}})
	if err != nil {
		return err
	}
	if said := answer.Claims[c.uid].Error; said != "" {
		return textError(said)
	}
	return nil
}

type textError string

func (e textError) Error() string { return string(e) }

// mustPrepare also checks that the claim got one device of the kind that engines look for.
func (k *kubelet) mustPrepare(t *testing.T, c *claim) string {
	t.Helper()
	devices, err := k.prepare(c)
	if err != nil {
		t.Fatalf("prepare: %v", err)
	}
	if len(devices) != 1 || len(devices[0].CdiDeviceIds) != 1 || !strings.HasPrefix(devices[0].CdiDeviceIds[0], "terrace.dev/lease=") {
		t.Fatalf("prepare gave %v", devices)
	}
	if devices[0].PoolName != nodeName+"/main" || devices[0].DeviceName != "memory" || devices[0].GetShareId() != c.share ||
		!slices.Equal(devices[0].RequestNames, []string{"mem"}) {
		t.Fatalf("prepare gave %v", devices)
	}
	return devices[0].CdiDeviceIds[0]
}

// health is what the driver's stream said last.
func (k *kubelet) health(t *testing.T) func() *healthv1.DeviceHealth {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	stream, err := healthv1.NewDRAResourceHealthClient(k.connection).NodeWatchResources(ctx, &healthv1.NodeWatchResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	said := make(chan *healthv1.DeviceHealth, 1000)
	go func() {
		for {
			report, err := stream.Recv()
			if err != nil {
				return
			}
			for _, device := range report.Devices {
				said <- device
			}
		}
	}()
	var last *healthv1.DeviceHealth
	return func() *healthv1.DeviceHealth {
		for {
			select {
			case last = <-said:
			default:
				if last == nil {
					return &healthv1.DeviceHealth{}
				}
				return last
			}
		}
	}
}
