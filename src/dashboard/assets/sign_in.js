// Takes the one-time code out of the address, where no server and no history keeps it, and signs in.
// @ts-check

const code = new URLSearchParams(location.hash.slice(1)).get("code");
const field = document.querySelector("input[name=token]");
const form = document.querySelector("form.sign-in");
if (code && field instanceof HTMLInputElement && form instanceof HTMLFormElement) {
  history.replaceState(null, "", location.pathname + location.search);
  field.value = code;
  form.requestSubmit();
}
